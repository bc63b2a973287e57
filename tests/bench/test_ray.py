"""The Ray engine on a real cluster of two nodes on this machine, one of which is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from typer.testing import CliRunner

from acclimate.bench import Entry, Event, Store, Suite, run_suite
from acclimate.bench.ray_engine import Slots, import_ray
from acclimate.cli.main import app
from acclimate.errors import BadInput, MissingExtra
from tests.bench.jobs import environment, make_spec, stable, stable_suite, sums
from tests.bench.processes import find_children
from tests.codes import raises

# Seconds on free cores; most of it is the start of processes.
pytestmark = pytest.mark.timeout(600)

# Progress is told every tenth of a second, and with the pause of `environment` a batch takes half
# of that: the fourth batch, which the watcher waits for, is told before the gate is reached.
GATE_AFTER = "10"
LONG = {
    "model": "tests.bench.models:gated",
    "corruptions": ("gaussian_noise",),
    "images": 60,
    "protocol": {"batch_size": 4, "stream": "continual"},
}
SPECS = {
    "bn_ema": make_spec("bn_ema", **LONG),
    "norm": make_spec("norm", **LONG),
    "bad": make_spec("norm", model="tests.bench.models:nowhere"),
    "swr": make_spec("swr"),
    "tent+swr": make_spec("tent", terms={"swr": {}}),
}
GOOD = [name for name in SPECS if name != "bad"]


def make_suite(*names: str) -> Suite:
    return Suite(title="small", entries=tuple(Entry(SPECS[name], name) for name in names))


def check_same(out: Path, local: Path) -> None:
    """Compare records and sums of all jobs that the local engine has done."""
    expected = stable_suite(local)
    assert len(expected) == len(Store(local).suite.entries)
    for name, (records, measures) in expected.items():
        assert stable(out / "jobs" / name) == records, name
        assert sums(out / "jobs" / name) == measures, name


@dataclass
class Watcher:
    """Kills a node as soon as every node is at work on a job that has left a checkpoint."""

    node: Any
    gate: Path
    events: list[Event] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    at_work: dict[str, int] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if event.kind == "progress":
            self.at_work[event.name] = event.done
        elif event.kind != "stage":
            self.at_work.pop(event.name, None)
        if not self.killed and len([n for n in self.at_work.values() if n >= 4]) == 2:
            (raylet,) = self.node.all_processes["raylet"]
            number = raylet.process.pid
            self.killed = [number, *find_children(number)]
            for each in self.killed:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            self.gate.touch()


@pytest.fixture(scope="module")
def ray_environment() -> Iterator[Path]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'acclimate[ray]'")
    # What killed processes leave behind goes here; a short path, as it is that of sockets, too.
    folder = TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
    with folder as place, pytest.MonkeyPatch.context() as patch:
        gate = Path(place) / "gate"
        own = {"TMPDIR": place, "RAY_TMPDIR": place}
        own |= {"ACCLIMATE_TEST_GATE": str(gate), "ACCLIMATE_TEST_GATE_AFTER": GATE_AFTER}
        for name, value in environment(**own).items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        # Else Ray would make a token in the home of whoever runs the tests.
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Other tests run beside these, and by itself Ray lets its workers wait for them.
        patch.setenv("RAY_worker_niceness", "0")
        yield gate


@pytest.fixture(scope="module")
def survived(ray_environment, tmp_path_factory) -> Iterator[tuple[Path, Watcher]]:
    """A suite on two nodes with one core each, of which one is lost."""
    from ray.cluster_utils import Cluster

    out = tmp_path_factory.mktemp("ray") / "out"
    memory = {"object_store_memory": 100_000_000}
    head = {"num_cpus": 1, "include_dashboard": False, **memory}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        watcher = Watcher(cluster.add_node(num_cpus=1, **memory), ray_environment)
        cluster.wait_for_nodes()
        run_suite(
            make_suite(*SPECS),
            out,
            engine="ray",
            address=cluster.address,
            on_event=watcher,
            checkpoint_every=2,
        )
        yield out, watcher
    finally:
        cluster.shutdown()


@pytest.mark.slow
def test_all_that_a_killed_node_left_is_done_by_the_other(
    survived, tmp_path: Path, monkeypatch
) -> None:
    out, watcher = survived
    assert len(watcher.killed) >= 2  # the node and at least one worker on it
    (lost,) = [event for event in watcher.events if event.kind == "retried"]
    assert lost.entry.label in ("bn_ema", "norm")
    assert "its process was lost on" in lost.text
    # It went on from a checkpoint, not from the beginning.
    after = watcher.events[watcher.events.index(lost) :]
    begun = next(e for e in after if e.kind == "progress" and e.name == lost.name)
    assert begun.done >= 4
    assert begun.done % 2 == 0
    states = {own.entry.label: own.state for own in Store(out).statuses()}
    assert states == {**dict.fromkeys(GOOD, "done"), "bad": "failed"}
    monkeypatch.setenv("ACCLIMATE_TEST_PAUSE", "0")
    found = run_suite(make_suite(*GOOD), tmp_path / "local", engine="local", n_workers=0)
    assert len(found) == len(GOOD)
    check_same(out, tmp_path / "local")
    assert not list(out.glob("jobs/*/*.state"))
    assert len(list((out / "artifacts").glob("*.acclimate"))) == 1


@pytest.mark.slow
def test_a_job_that_fails_does_not_stop_the_others(survived) -> None:
    out, watcher = survived
    (error,) = [own.error for own in Store(out).statuses() if own.error is not None]
    assert error["type"] == "BadInput"
    assert "nowhere" in error["message"]
    assert "Traceback" in error["traceback"]
    told = [(event.kind, event.entry.label) for event in watcher.events]
    assert told.count(("failed", "bad")) == 1
    for name in GOOD:
        assert told.count(("finished", name)) == 1


@pytest.mark.slow
def test_ray_is_started_here_and_a_job_that_kills_its_worker_is_given_up(
    ray_environment, tmp_path: Path
) -> None:
    import ray

    suite = tmp_path / "suite.toml"
    shared = '[job]\ncorruptions = ["fog"]\nimages = 8\nprotocol = { batch_size = 4 }\n'
    good = '[[rows]]\nmodel = "tests.bench.models:tiny"\nmethod = ["source", "norm"]\n'
    bad = '[[rows]]\nmodel = "tests.bench.models:doomed"\nmethod = "norm"\nlabel = "doomed"\n'
    suite.write_text(shared + good + bad)
    words = ["bench", "run", str(suite), "--engine", "ray", "--workers", "1", "--retries", "0"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert result.exit_code == 1, result.output
    assert "1 of 3 jobs" in result.stderr
    assert not ray.is_initialized()
    statuses = Store(tmp_path / "out").statuses()
    assert [own.state for own in statuses] == ["done", "done", "failed"]
    error = statuses[-1].error
    assert error is not None
    assert error["type"] == "WorkerDied"
    assert "was lost on" in error["message"]
    assert "(attempt 1)" in error["message"]
    suite.write_text(shared + good)
    assert len(run_suite(Suite.load(suite), tmp_path / "local", n_workers=0)) == 2
    check_same(tmp_path / "out", tmp_path / "local")


def test_a_cluster_that_is_not_there_is_refused(ray_environment, tmp_path: Path) -> None:
    for address in ("ray://nowhere:10001", "127.0.0.1:1"):
        with raises("cluster_unreachable", BadInput, address=address):
            run_suite(make_suite("norm"), tmp_path, engine="ray", address=address)


def test_without_ray_the_message_names_the_extra(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with raises("missing_extra", MissingExtra, package="ray") as caught:
        import_ray()
    assert "pip install 'acclimate[ray]'" in str(caught.value)
    with raises("missing_extra", MissingExtra, package="ray"):
        run_suite(make_suite("norm"), tmp_path, engine="ray")
    assert [own.state for own in Store(tmp_path).statuses()] == ["waiting"]


def test_what_cannot_be_asked_for_is_refused(tmp_path: Path) -> None:
    suite = make_suite("norm")
    with raises("unknown_name", BadInput, kind="engine", name="raay") as caught:
        run_suite(suite, tmp_path, engine="raay")
    assert "ray" in caught.value.known
    with raises("unknown_option", BadInput, option="address", known=()):
        run_suite(suite, tmp_path, engine="local", address="auto")
    with raises("unknown_option", BadInput, option="n_cpu") as caught:
        run_suite(suite, tmp_path, engine="ray", n_cpu=2)
    assert "n_cpus" in caught.value.known
    for options in ({"n_workers": 0}, {"n_cpus": 0}, {"n_gpus": -1}):
        ((option, found),) = options.items()
        with raises("out_of_range", BadInput, option=option, found=found):
            run_suite(suite, tmp_path, engine="ray", **options)


class FakeCluster:
    """Says which nodes there are."""

    def __init__(self, *resources: dict[str, float]) -> None:
        self.alive = [{"Alive": True, "Resources": own} for own in resources]

    def nodes(self) -> list[dict[str, Any]]:
        return [*self.alive, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}]


def test_jobs_are_counted_that_the_nodes_have_room_for(monkeypatch) -> None:
    cluster = FakeCluster({"CPU": 3.0}, {"CPU": 5.0, "GPU": 1.0})
    assert Slots(cluster, 2, 0).count() == 3
    assert Slots(cluster, 2, 0.5).count() == 2
    with raises("insufficient_resources", BadInput, required={"CPU": 8, "GPU": 1}):
        Slots(cluster, 8, 1).count()
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    slots = Slots(cluster, 1, 1)
    assert slots.count() == 1
    cluster.alive = []
    clock[0] += 1
    assert slots.count() == 1  # it does not look at every call
    clock[0] += 10
    assert slots.count() == 0  # another node may come
    clock[0] += 120
    with raises("insufficient_resources", BadInput, required={"CPU": 1, "GPU": 1}):
        slots.count()
