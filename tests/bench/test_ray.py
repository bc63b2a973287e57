"""The Ray engine: on a cluster of two nodes, one of which is killed; and its parts alone."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

from acclimate.bench import Entry, Event, Store, Suite, run_suite
from acclimate.bench import load as own_load
from acclimate.bench.execute import RunOptions
from acclimate.bench.job import JobSpec, Preparing
from acclimate.bench.load import Loader
from acclimate.bench.provenance import file_sha256
from acclimate.bench.ray import (
    Assets,
    NodeFolder,
    NodeLoader,
    RayExecutor,
    Storage,
    import_ray,
    run_on_node,
)
from acclimate.bench.run_folder import RunFolder
from acclimate.bench.schedule import End, Message, run_job
from acclimate.cli.main import app
from acclimate.errors import BadInput, MissingExtra
from tests.bench.jobs import environment, make_spec, run_once, stable, stable_suite, sums
from tests.bench.models import N_CLASSES, tiny
from tests.bench.processes import find_children
from tests.codes import raises
from tests.images import write_images

# Seconds on free cores; most of it is the start of processes.
pytestmark = pytest.mark.timeout(600)

# Progress is told every tenth of a second, and with the pause of `environment` a batch takes half
# of that: the fifth batch, which the watcher waits for, is told before the gate is reached.
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
        # The checkpoint after batch 4 is complete before batch 5 begins.
        if not self.killed and len([n for n in self.at_work.values() if n >= 5]) == 2:
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


@pytest.fixture(scope="module", params=["shared", "storage"])
def survived(request, ray_environment, tmp_path_factory) -> Iterator[tuple[Path, Watcher]]:
    """A suite on two nodes with one core each, of which one is lost."""
    from ray.cluster_utils import Cluster

    root = tmp_path_factory.mktemp("ray")
    ray_environment.unlink(missing_ok=True)
    memory = {"object_store_memory": 100_000_000}
    head = {"num_cpus": 1, "include_dashboard": False, **memory}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    options: dict[str, Any] = {}
    if request.param == "storage":
        options["storage"] = (root / "storage").as_uri()
    try:
        watcher = Watcher(cluster.add_node(num_cpus=1, **memory), ray_environment)
        cluster.wait_for_nodes()
        run_suite(
            make_suite(*SPECS),
            root / "out",
            engine="ray",
            address=cluster.address,
            on_event=watcher,
            checkpoint_every=2,
            **options,
        )
        yield root / "out", watcher
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
    stages = [event.text for event in watcher.events if event.kind == "stage"]
    assert stages.count("preparing an artifact") == 1


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


@pytest.mark.slow
def test_an_interrupted_run_leaves_a_checkpoint_of_its_last_batch(
    ray_environment, tmp_path: Path
) -> None:
    ray_environment.touch()

    def interrupt(event: Event) -> None:
        if event.done >= 3:
            raise KeyboardInterrupt

    suite = make_suite("bn_ema")
    with pytest.raises(KeyboardInterrupt):
        run_suite(suite, tmp_path / "out", engine="ray", n_workers=1, on_event=interrupt)
    (status,) = Store(tmp_path / "out").statuses()
    assert status.state == "interrupted"
    point = json.loads((tmp_path / "out" / status.folder / "checkpoint.json").read_text())
    assert 3 <= point["n_batches"] == status.done < 15
    for out in ("out", "local"):
        run_suite(suite, tmp_path / out, n_workers=0)
    check_same(tmp_path / "out", tmp_path / "local")


@pytest.mark.slow
def test_a_run_ends_with_one_error_if_nodes_do_not_see_its_folder(
    ray_environment, tmp_path: Path, monkeypatch
) -> None:
    """The driver expects another content than the nodes see."""
    monkeypatch.setattr("acclimate.bench.ray.file_digest", lambda path: "another")
    with raises("folder_not_shared", BadInput, path=tmp_path / "out"):
        run_suite(make_suite("norm"), tmp_path / "out", engine="ray", n_workers=1)
    assert [own.state for own in Store(tmp_path / "out").statuses()] == ["waiting"]


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


class FakeRay:
    """Knows which nodes there are."""

    def __init__(self, *resources: dict[str, float]) -> None:
        self.alive = [{"Alive": True, "Resources": own} for own in resources]

    def nodes(self) -> list[dict[str, Any]]:
        return [*self.alive, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}]

    def count(self, n_cpus: int, n_gpus: float, n_workers: int | None = None) -> RayExecutor:
        executor = RayExecutor.__new__(RayExecutor)
        executor.note_needs(self, n_workers, n_cpus, n_gpus)
        return executor


def test_jobs_are_counted_that_the_nodes_have_room_for(monkeypatch) -> None:
    cluster = FakeRay({"CPU": 3.0}, {"CPU": 5.0, "GPU": 1.0})
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    assert cluster.count(2, 0).capacity() == 3
    assert cluster.count(2, 0, n_workers=2).capacity() == 2
    assert cluster.count(2, 0.5).capacity() == 2
    large = cluster.count(8, 1)
    assert large.capacity() == 0  # another node may come
    one = cluster.count(1, 1)
    assert one.capacity() == 1
    cluster.alive = []
    clock[0] += 1
    assert one.capacity() == 1  # it does not look at every call
    clock[0] += 10
    assert one.capacity() == 0
    clock[0] += 120
    with raises("insufficient_resources", BadInput, required={"CPU": 1, "GPU": 1}):
        one.capacity()
    with raises("insufficient_resources", BadInput, required={"CPU": 8, "GPU": 1}):
        large.capacity()


# A node without a cluster -------------------------------------------------------------------------


class Node:
    """The parts of a node and of the machine of the command, in this process.

    What is fetched is counted in `sent`.
    """

    def __init__(self, root: Path, storage: Storage | None = None) -> None:
        self.options = RunOptions(
            artifacts=root / "artifacts", command="by hand", checkpoint_every=2
        )
        self.sent: list[Any] = []
        self.assets = Assets(self.options, str(Path.cwd()), None, put=self._put)
        self.messages: list[Message] = []
        (root / "scratch").mkdir(parents=True, exist_ok=True)
        self.loader = NodeLoader(self.options, root / "scratch", self._ask, storage)

    def _put(self, value: Any) -> Any:
        self.sent.append(value)
        return value

    def _ask(self, name: str, *arguments: Any) -> Any:
        found = getattr(self.assets, name)(*arguments)
        return found[0] if isinstance(found, list) else found

    def run(self, spec: JobSpec, folder: Path) -> End:
        names = [name for name in (spec.weights,) if name is not None]
        local = self.loader.localize(spec, {name: file_sha256(name) for name in names})
        own = NodeFolder(folder, spec)
        own.make()
        own.describe({"key": spec.key, **spec.to_dict()})
        report, options = self.messages.append, self.options
        return run_job(local, own, self.loader, options, report, lambda: False)


def check_alone(spec: JobSpec, folder: Path, scratch: Path) -> None:
    """Compare with the same job in a process that has everything."""
    assert run_once(spec, scratch / folder.name) == "finished"
    assert stable(folder) == stable(scratch / folder.name)
    assert sums(folder) == sums(scratch / folder.name)


def elsewhere(monkeypatch, name: str, instead: Callable[..., Any]) -> None:
    """Let nodes do something else than the machine of the command."""
    usual = getattr(Loader, name)

    def choose(self: Loader, *arguments: Any) -> Any:
        return (instead if isinstance(self, NodeLoader) else usual)(self, *arguments)

    monkeypatch.setattr(Loader, name, choose)


def refuse(*arguments: Any, **options: Any) -> Any:
    raise BadInput("not_found", "there is no such thing on this machine.", path="nowhere")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    counts = {f"class{label}": 2 for label in range(N_CLASSES)}
    return write_images(tmp_path / "pictures", counts, size=16)


def test_weights_that_a_node_lacks_are_sent_once(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "tiny.safetensors"
    state = {name: -value for name, value in tiny().state_dict().items()}
    state["1.running_var"] = state["1.running_var"].neg()
    save_file(state, path)
    spec, node = make_spec("norm", weights=str(path)), Node(tmp_path / "node")
    assert node.run(spec, tmp_path / "near") == "finished"
    assert node.sent == []
    monkeypatch.setattr("acclimate.bench.ray.has_file", lambda name, sha256: False)
    assert node.run(spec, tmp_path / "far") == "finished"
    assert node.run(replace(spec, seed=1), tmp_path / "next") == "finished"
    assert node.sent == [path.read_bytes()]
    assert stable(tmp_path / "far") == stable(tmp_path / "near")
    for name in ("near", "far"):
        origin = json.loads((tmp_path / name / "result.json").read_text())["provenance"]
        assert origin["spec"]["weights"] == origin["model"]["file"] == str(path)
        assert json.loads((tmp_path / name / "spec.json").read_text())["weights"] == str(path)
    check_alone(spec, tmp_path / "far", tmp_path / "alone")


def test_data_is_read_there_or_sent(tmp_path: Path, pictures: Path, monkeypatch) -> None:
    spec = make_spec("norm", data=str(pictures), corruptions=None, images=None)
    node = Node(tmp_path / "same")
    assert node.run(spec, tmp_path / "same-job") == "finished"
    assert node.sent == []
    usual = Loader.read_data

    def read_others(*arguments: Any) -> Any:
        """Return the pictures of a machine where one of them is another one."""
        found = usual(*arguments)
        (domain,) = found.domains
        about = {domain.name: {**found.descriptions[domain.name], "sha256": "another"}}
        dark = replace(domain, x=np.zeros((len(domain), 16, 16, 3), dtype=np.uint8))
        return replace(found, groups={domain.name: (dark,)}, descriptions=about)

    for name, instead in (("absent", refuse), ("altered", read_others)):
        node = Node(tmp_path / name)
        with monkeypatch.context() as patch:
            elsewhere(patch, "read_data", instead)
            assert node.run(spec, tmp_path / f"{name}-job") == "finished"
        assert stable(tmp_path / f"{name}-job") == stable(tmp_path / "same-job")
        assert len(node.sent) == 1
    check_alone(spec, tmp_path / "absent-job", tmp_path / "alone")


def test_the_source_is_read_there_or_sent(tmp_path: Path, pictures: Path, monkeypatch) -> None:
    spec, node = make_spec("swr"), Node(tmp_path / "node")
    how = replace(spec.prepare, source=str(pictures), images=None)
    own = make_spec("swr", data=str(pictures), corruptions=None, images=None, prepare=how)
    with monkeypatch.context() as patch:
        elsewhere(patch, "open_source", refuse)
        assert node.run(spec, tmp_path / "set") == "finished"
        assert len(node.sent) == 1
        assert node.run(own, tmp_path / "pictures-job") == "failed"
    error = RunFolder(tmp_path / "pictures-job").read("error.json")
    assert error is not None
    assert (error["code"], error["data"]["path"]) == ("not_found", str(pictures))
    check_alone(spec, tmp_path / "set", tmp_path / "alone")


def test_data_that_nobody_has_is_one_error(tmp_path: Path, pictures: Path, monkeypatch) -> None:
    spec = make_spec("norm", data=str(pictures), corruptions=None, images=None)
    monkeypatch.setattr(own_load, "load_data", refuse)
    assert Node(tmp_path / "node").run(spec, tmp_path / "job") == "failed"
    error = RunFolder(tmp_path / "job").read("error.json")
    assert error is not None
    assert error["code"] == "not_found"


def test_what_the_guard_needs_is_prepared_once_for_all_nodes(tmp_path: Path) -> None:
    """With a storage: artifacts are not in a folder that the nodes share."""
    accuracy = {"n_samples": 64, "severities": [5], "n_runs": 4, "shifts": ["saturate"]}
    how = Preparing(images=96, parts={"penalty": {"n_samples": 8}, "accuracy": accuracy})
    first, second = (make_spec(name, guard=True, prepare=how) for name in ("tent", "swr"))
    storage = Storage((tmp_path / "storage").as_uri())
    nodes = [Node(tmp_path / name, storage) for name in "ab"]
    assert nodes[0].run(first, tmp_path / "tent") == "finished"
    assert nodes[1].run(second, tmp_path / "swr") == "finished"
    stages = [text for node in nodes for kind, _, _, text in node.messages if kind == "stage"]
    assert stages.count("preparing an artifact") == 2  # the guard's, and that of swr
    assert len(list((tmp_path / "storage" / "artifacts").iterdir())) == 2
    check_alone(second, tmp_path / "swr", tmp_path / "alone")


def test_a_node_that_does_not_see_the_folder_is_refused(ray_environment, tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text("{}")
    sha256 = file_sha256(str(tmp_path / "suite.json"))
    options, here = RunOptions(artifacts=tmp_path / "artifacts"), str(Path.cwd())
    spec = make_spec("norm")
    for path, found in ((tmp_path / "absent.json", sha256), (tmp_path / "suite.json", "another")):
        with raises("folder_not_shared", BadInput, path=tmp_path):
            run_on_node(
                "run", options, here, None, (path, found), None, None, None, "job", spec, "", {}
            )


@pytest.mark.parametrize("has_storage", [False, True])
def test_a_job_that_is_asked_to_stop_leaves_a_checkpoint(tmp_path: Path, has_storage: bool) -> None:
    """Another node resumes it."""
    storage = Storage((tmp_path / "storage").as_uri()) if has_storage else None
    root = tmp_path / ("storage" if has_storage else "suite")
    place = "jobs/a" if has_storage else str(root / "jobs" / "a")
    spec = make_spec("bn_ema", **{**LONG, "model": "tests.bench.models:tiny"})
    messages: list[Message] = []

    def is_far() -> bool:
        return any(done >= 2 for _, done, _, _ in messages)

    def run(name: str, should_stop: Callable[[], bool]) -> End:
        loader = Node(tmp_path / name, storage).loader
        return loader.run(spec, place, {}, messages.append, should_stop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acclimate.bench.ray.REPORT_EVERY", 0.0)
        assert run("first", is_far) == "stopped"
    records = (root / "jobs" / "a" / "records.jsonl").read_bytes()
    point = json.loads((root / "jobs" / "a" / "checkpoint.json").read_text())
    assert 2 <= point["n_batches"] == records.count(b"\n") < 15
    assert run("second", lambda: False) == "finished"
    check_alone(spec, root / "jobs" / "a", tmp_path / "alone")


def test_a_job_of_another_process_is_busy_and_its_folder_is_left_alone(tmp_path: Path) -> None:
    """The folder is held by somebody else; with a storage, whose copy is older."""
    storage, folder = Storage((tmp_path / "storage").as_uri()), RunFolder(tmp_path / "jobs" / "a")
    folder.make()
    (folder.path / "records.jsonl").write_text("older")
    storage.upload(folder.path, "jobs/a")
    (folder.path / "records.jsonl").write_text("newer")
    told: list[Any] = []
    executor = RayExecutor.__new__(RayExecutor)
    executor._storage, executor._running = storage, {}
    executor._inbox = SimpleNamespace(qsize=lambda: 0, get_nowait_batch=lambda n: [])
    executor._ray = SimpleNamespace(
        put=lambda value: value,
        get=lambda value: value,
        wait=lambda ends, **how: (ends, []),
        exceptions=SimpleNamespace(RayError=RuntimeError),
    )
    with folder.hold():
        executor.begin("jobs/a", make_spec("norm"), folder)
        executor.wait(0.0, lambda *message: told.append(message))
        executor.close()
    assert told == [("jobs/a", ("busy", 0, 0, ""))]
    assert (folder.path / "records.jsonl").read_text() == "newer"


class Cut(Storage):
    """A storage whose writer is killed before it copies one more file."""

    n_left = 0

    def put(self, path: Path, name: str) -> None:
        if self.n_left == 0:
            raise KeyboardInterrupt
        self.n_left -= 1
        super().put(path, name)


def test_a_job_is_resumed_from_a_storage_wherever_its_writer_was_killed(tmp_path: Path) -> None:
    url, whole = (tmp_path / "storage").as_uri(), tmp_path / "whole"
    spec = make_spec("bn_ema", images=8)
    assert run_once(spec, whole) == "finished"
    options = RunOptions(artifacts=tmp_path / "artifacts", checkpoint_every=1)
    loader = Loader(options.artifacts)

    def run(storage: Storage, name: str) -> None:
        folder = tmp_path / "node" / name
        storage.download(name, folder)
        upload = partial(storage.upload, folder, name)
        own = NodeFolder(folder, spec, upload)
        assert run_job(spec, own, loader, options, lambda message: None, lambda: False)
        upload()

    cut = Cut(url)
    n_resumed = 0
    for n in itertools.count(1):
        cut.n_left, name = n, f"jobs/{n}"
        with suppress(KeyboardInterrupt):
            run(cut, name)
        n_resumed += "checkpoint.json" in cut.list_files(name)
        shutil.rmtree(tmp_path / "node")
        run(Storage(url), name)
        cut.download(name, tmp_path / "back")
        assert stable(tmp_path / "back") == stable(whole)
        assert sums(tmp_path / "back") == sums(whole)
        assert not [each for each in cut.list_files(name) if each.endswith(".state")]
        if cut.n_left:
            break
    assert n > 10
    assert n_resumed > 3


def test_a_storage_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for url in ("nonsense://bucket/x", (tmp_path / "file" / "x").as_uri()):
        with raises("not_writable", BadInput, path=url):
            Storage(url)
