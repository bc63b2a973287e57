"""Distribution of jobs among workers, retries, and jobs in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acclimate.bench import Entry, Event, JobSpec, Store, Suite, run_suite
from acclimate.bench.execute import RunOptions
from acclimate.bench.run_folder import RunFolder
from acclimate.bench.schedule import (
    Message,
    Processes,
    Queue,
    Report,
    WorkerProcess,
)
from acclimate.errors import BadInput
from tests.bench.jobs import environment, make_spec, read_lines, run_once, stable, sums
from tests.bench.processes import CLI, Launch, has_records, wait_until
from tests.codes import raises

# Seconds on a free core; several processes may have to share a busy one.
pytestmark = pytest.mark.timeout(900)


# Distribution and retries, with processes that follow a script ------------------------------------


class Scripted:
    """An executor whose processes follow a script: `finish` a job, `die` at it, or `vanish`."""

    def __init__(self, n_processes: int, *acts: str) -> None:
        self.begun: list[str] = []
        self.is_closed = False
        self._n, self._acts, self._inbox = n_processes, list(acts), list[tuple[str, Message]]()

    def capacity(self) -> int:
        return self._n

    def begin(self, name: str, spec: JobSpec, folder: RunFolder) -> None:
        self.begun.append(name)
        folder.make()
        act = self._acts.pop(0) if self._acts else "finish"
        started: list[Message] = [] if act == "vanish" else [("started", 0, 0, "")]
        end = "finished" if act == "finish" else "lost"
        self._inbox += [(name, each) for each in (*started, (end, 0, 0, "was lost on purpose"))]

    def wait(self, seconds: float, report: Report) -> None:
        inbox, self._inbox = self._inbox, []
        for name, message in inbox:
            report(name, message)

    def close(self) -> None:
        self.is_closed = True


def run_scripted(root: Path, executor: Scripted, retries: int = 1) -> list[tuple[str, str]]:
    """Run a suite of three jobs; return what happened to each, without that it started."""
    specs = [make_spec("source", seed=seed) for seed in range(3)]
    suite = Suite(title="three", entries=tuple(Entry(s, str(s.seed)) for s in specs))
    store, events = Store.create(root, suite), list[Event]()
    Queue(store, list(store.jobs()), root, events.append, executor, retries).run()
    assert executor.is_closed
    return [(own.kind, own.entry.label) for own in events if own.kind != "started"]


def test_a_job_fails_when_it_has_cost_too_many_processes(tmp_path: Path) -> None:
    told = run_scripted(tmp_path, Scripted(1, "die", "die"))
    assert told == [("retried", "0"), ("failed", "0"), ("finished", "1"), ("finished", "2")]
    (error,) = [own.error for own in Store(tmp_path).statuses() if own.error is not None]
    assert error["type"] == "WorkerDied"
    assert "was lost on purpose (attempt 2)" in error["message"]


def test_a_job_that_had_not_begun_loses_no_retry(tmp_path: Path) -> None:
    told = run_scripted(tmp_path, Scripted(1, *["vanish"] * 5), retries=0)
    assert told.count(("retried", "0")) == 5
    assert told[5:] == [("finished", "0"), ("finished", "1"), ("finished", "2")]


def test_jobs_that_need_the_same_follow_each_other(tmp_path: Path) -> None:
    """But not while one of them prepares the artifact that the other needs."""
    fog, snow = {"corruptions": ("fog",)}, {"corruptions": ("snow",)}
    specs = [make_spec("source", seed=0, **fog), make_spec("source", seed=1, **snow)]
    specs += [make_spec("norm", seed=0, **snow), make_spec("norm", seed=1, **fog)]
    swr = [make_spec("swr", **fog), make_spec("swr", options={"lr": 0.1}, **fog)]
    suite = Suite(title="six", entries=tuple(Entry(s, f"{s.method}") for s in specs + swr))
    store = Store.create(tmp_path, suite)
    names = list(store.jobs())

    def order(n_processes: int, first: int = 0) -> list[str]:
        executor = Scripted(n_processes)
        Queue(store, names[first:], tmp_path, lambda event: None, executor, 0).run()
        return executor.begun

    assert order(1) == [names[place] for place in (0, 3, 4, 5, 1, 2)]
    assert order(6) == [names[place] for place in (0, 3, 4, 1, 2, 5)]


def test_a_job_goes_to_the_process_that_has_loaded_what_it_needs(
    tmp_path: Path, monkeypatch
) -> None:
    class Unstarted(WorkerProcess):
        def __init__(self, *shared: Any) -> None:
            self.job, self.needs = None, ()

        def send(self, order: Any) -> None: ...

    monkeypatch.setattr("acclimate.bench.schedule.WorkerProcess", Unstarted)
    executor = Processes(RunOptions(artifacts=tmp_path), 2, tmp_path / "logs" / "workers.log")
    fog, snow = (
        make_spec("source", corruptions=("fog",)),
        make_spec("source", corruptions=("snow",)),
    )
    for name, spec in (("first", fog), ("second", snow)):
        executor.begin(name, spec, RunFolder(tmp_path))
    first, second = executor._workers
    first.job = second.job = None
    executor.begin("third", replace(snow, method="norm"), RunFolder(tmp_path))
    assert (first.job, second.job) == (None, "third")


# Jobs in processes of their own -------------------------------------------------------------------


def make_suite(*specs: JobSpec) -> Suite:
    entries = [Entry(spec, f"{spec.method} {spec.seed} {spec.model}") for spec in specs]
    return Suite(title="small", entries=tuple(entries))


def write_suite(path: Path, *rows: str) -> Path:
    text = """
    [job]
    model = "tests.bench.models:slow"
    corruptions = ["gaussian_noise", "fog"]
    protocol = { batch_size = 4, stream = "continual" }
    """
    path.write_text(text + "".join(f"\n[[rows]]\n{row}" for row in rows))
    return path


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    """A suite with all that can go wrong, run by two workers.

    That a job is resumed by another worker if one dies is tested in test_kill.py and above: here
    there are no retries, and nothing is left to do when one dies, as a worker takes seconds
    to start.
    """
    root = tmp_path_factory.mktemp("spread")
    doom = root / "doom"
    specs = {
        "source": make_spec("source"),
        "bad": make_spec("tent", model="tests.bench.models:nowhere"),
        "swr": make_spec("swr"),
        "tent+swr": make_spec("tent", terms={"swr": {}}),
        "tent": make_spec("tent"),
        "doomed": make_spec("tent", model="tests.bench.models:doomed"),
    }
    events = []

    def take(event) -> None:
        events.append(event)
        ended = [own for own in events if own.kind in ("finished", "failed")]
        if len(ended) == len(specs) - 1:
            doom.touch()

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(ACCLIMATE_TEST_DOOM=str(doom)).items():
            patch.setenv(name, value)
        outcomes = run_suite(
            make_suite(*specs.values()),
            root / "out",
            n_workers=2,
            retries=0,
            on_event=take,
            checkpoint_every=2,
            command="acclimate bench run",
        )
    return root / "out", specs, events, outcomes


@pytest.mark.slow
def test_workers_give_what_one_process_gives(spread, tmp_path: Path) -> None:
    out, specs, _, outcomes = spread
    good = [name for name in specs if name not in ("bad", "doomed")]
    assert [own.entry.spec for own in outcomes] == [specs[name] for name in good]
    for name, outcome in zip(good, outcomes, strict=True):
        assert run_once(specs[name], tmp_path / name) == "finished"
        assert stable(out / outcome.folder) == stable(tmp_path / name)
        assert sums(out / outcome.folder) == sums(tmp_path / name)
        assert outcome.provenance["n_threads"] == 1
        assert outcome.provenance["command"] == "acclimate bench run"
    assert len(list((out / "artifacts").glob("*.acclimate"))) == 1


@pytest.mark.slow
def test_a_job_that_fails_does_not_stop_the_others(spread) -> None:
    out, specs, events, _ = spread
    found = {own.entry.spec.model: own for own in Store(out).statuses() if own.state != "done"}
    assert {own.state for own in found.values()} == {"failed"}
    bad = found["tests.bench.models:nowhere"].error
    assert bad is not None
    assert bad["type"] == "BadInput"
    assert "nowhere" in bad["message"]
    doomed = found["tests.bench.models:doomed"].error
    assert doomed is not None
    assert doomed["type"] == "WorkerDied"
    assert "was terminated by SIGKILL (attempt 1)" in doomed["message"]
    assert "fewer --workers" in doomed["remedy"]
    kinds = [(event.kind, event.entry.spec.model.partition(":")[2]) for event in events]
    assert kinds.count(("failed", "doomed")) == kinds.count(("failed", "nowhere")) == 1
    assert kinds.count(("finished", "tiny")) == 4
    progress = [e for e in events if e.kind == "progress" and e.entry.spec == specs["source"]]
    assert (progress[-1].done, progress[-1].total) == (12, 12)


@pytest.mark.slow
def test_what_is_done_is_not_run_again(spread, monkeypatch) -> None:
    out, specs, _, outcomes = spread

    def refuse(*arguments, **options):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("acclimate.bench.schedule.WorkerProcess", refuse)
    events = []
    suite = make_suite(*(specs[name] for name in ("source", "swr", "tent+swr", "tent")))
    again = run_suite(suite, out, n_workers=2, on_event=events.append)
    assert [event.kind for event in events] == ["found"] * 4
    assert [own.result.to_dict() for own in again] == [own.result.to_dict() for own in outcomes]


def test_what_cannot_be_asked_for_is_refused(tmp_path: Path) -> None:
    suite = make_suite(make_spec("source"))
    with raises("unknown_name", BadInput, kind="engine", name="lokal") as caught:
        run_suite(suite, tmp_path, engine="lokal")
    assert "local" in caught.value.known
    for options in ({"n_workers": -1}, {"retries": -1}, {"checkpoint_every": 0}):
        ((option, found),) = options.items()
        with raises("out_of_range", BadInput, option=option, found=found):
            run_suite(suite, tmp_path, **options)


def test_the_message_has_what_a_worker_said_that_could_not_start(
    tmp_path: Path, monkeypatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with raises("worker_failed", BadInput) as caught:
        run_suite(make_suite(make_spec("source")), tmp_path / "out", n_workers=1)
    assert "exited with code 3" in str(caught.value)
    assert "no such thing" in str(caught.value)


# Begins when another process has got as far.
SHARE = """
import json, sys, time
from pathlib import Path
from acclimate.bench import Suite, run_suite
Path(sys.argv[3]).touch()
deadline = time.monotonic() + 200
while not Path(sys.argv[4]).exists() and time.monotonic() < deadline:
    time.sleep(0.01)
events = []
suite = Suite.load(sys.argv[1])
found = run_suite(suite, sys.argv[2], n_workers=0, on_event=events.append, checkpoint_every=1)
kinds = [(event.kind, event.name) for event in events if event.kind not in ("stage", "progress")]
print(json.dumps({"events": kinds, "errors": [own.error for own in found]}))
"""


@pytest.mark.slow
def test_two_processes_share_the_work_in_one_folder(tmp_path: Path) -> None:
    suite = write_suite(
        tmp_path / "suite.toml", 'method = ["source", "norm"]\nimages = 12\nseed = [0, 1]'
    )
    command = [sys.executable, "-c", SHARE, str(suite), str(tmp_path / "out")]
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    both = [
        subprocess.Popen([*command, *names], stdout=subprocess.PIPE, env=environment(), text=True)
        for names in ((a, b), (b, a))
    ]
    said = [json.loads(process.communicate(timeout=500)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0]["errors"] == said[1]["errors"]
    assert len(said[0]["errors"]) == 4
    by_each = [[name for kind, name in own["events"] if kind == "started"] for own in said]
    assert all(by_each)
    started = sorted(by_each[0] + by_each[1])
    assert started == sorted(set(started))
    assert len(started) == 4
    for own in said:
        ends = [name for kind, name in own["events"] if kind in ("finished", "found")]
        assert sorted(ends) == started
    for entry in Suite.load(suite).entries:
        folder = tmp_path / "out" / "jobs" / f"{entry.spec.method}-{entry.spec.key}"
        assert run_once(entry.spec, tmp_path / folder.name) == "finished"
        assert stable(folder) == stable(tmp_path / folder.name)


@pytest.mark.slow
def test_an_interruption_without_workers_leaves_a_checkpoint(
    tmp_path: Path, launch: Launch
) -> None:
    suite = write_suite(tmp_path / "suite.toml", 'method = "bn_ema"\nimages = 200')
    (entry,) = Suite.load(suite).entries
    job = tmp_path / "out" / "jobs" / f"bn_ema-{entry.spec.key}"
    process = launch([*CLI, str(suite), "--out", str(tmp_path / "out"), "--workers", "0"])
    wait_until(has_records(job, 3))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "Run the same command again to resume." in said
    place = json.loads((job / "checkpoint.json").read_text())
    assert place["n_batches"] == len(read_lines(job)) >= 3


def test_leftovers_of_a_process_killed_right_after_it_was_done_are_removed(tmp_path: Path) -> None:
    suite = Suite(title="short", entries=(Entry(make_spec("norm", images=8), "norm"),))
    run_suite(suite, tmp_path, n_workers=0)
    (folder,) = (tmp_path / "jobs").iterdir()
    for name in ("checkpoint.json", "4.state", ".5.state.part"):
        (folder / name).write_bytes(b"{}")
    run_suite(suite, tmp_path, n_workers=0)
    assert not [path for path in folder.iterdir() if path.suffix in (".state", ".part")]
    assert not (folder / "checkpoint.json").exists()
