"""Distribution of jobs among workers, retries, and jobs in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from acclimate.bench import Entry, Event, JobSpec, Store, Suite, run_suite
from acclimate.bench.run_folder import RunFolder
from acclimate.bench.schedule import Message, Meter, Pool, Report, Worker, weigh
from acclimate.errors import BadInput
from tests.bench.jobs import environment, make_spec, read_lines, run_once, stable, sums
from tests.bench.processes import CLI, Launch, has_records, wait_until
from tests.codes import raises

# Seconds on a free core; several processes may have to share a busy one.
pytestmark = pytest.mark.timeout(900)


# Distribution and retries, with workers that follow a script --------------------------------------


class Scripted(Worker):
    """Follows a script: `finish` its job, `die` at it, or `vanish` before it."""

    def __init__(self, acts: Sequence[str], starts: bool = True, is_dead: bool = False) -> None:
        super().__init__()
        self.begun: list[str] = []
        self.was_ended = False
        self.messages: list[Message | None] = [("ready", 0, 0, "")] if starts else []
        self.messages += [None] if is_dead else []
        self._acts = list(acts)

    def begin(self, spec: JobSpec, folder: RunFolder) -> None:
        assert self.is_ready
        assert self.job is not None
        self.begun.append(self.job)
        folder.make()
        act = self._acts.pop(0)
        self.has_begun = act != "vanish"
        self.messages.append(("finished", 0, 0, "") if act == "finish" else None)

    def end(self, seconds: float) -> None:
        self.was_ended = True

    def describe_end(self) -> tuple[str, str]:
        return "was lost on purpose", "there is no such package"


class Stage:
    """A suite of three jobs, and a pool whose workers follow a script, one for each."""

    def __init__(self, root: Path, n_workers: int = 1, retries: int = 1) -> None:
        specs = [make_spec("source", seed=seed) for seed in range(3)]
        suite = Suite(title="three", entries=tuple(Entry(s, str(s.seed)) for s in specs))
        self.store = Store.create(root, suite)
        self.names = list(self.store.jobs())
        self.events: list[Event] = []
        self.spawned: list[Scripted] = []
        self.script: list[dict[str, Any]] = []
        self.capacity = lambda: n_workers
        artifacts = root / "artifacts"
        self.pool = Pool(self.store, self.names, artifacts, self.events.append, self, retries)

    def spawn(self) -> Scripted:
        worker = Scripted(**self.script[len(self.spawned)])
        self.spawned.append(worker)
        return worker

    def wait(self, workers: Sequence[Worker], seconds: float, report: Report) -> None:
        for worker in workers:
            assert isinstance(worker, Scripted)
            if worker.messages:
                report(worker, worker.messages.pop(0))

    def run(self, *script: dict[str, Any]) -> list[tuple[str, str]]:
        self.script = list(script)
        self.pool.run()
        return [(event.kind, event.entry.label) for event in self.events]


def test_only_a_worker_that_has_started_gets_a_job(tmp_path: Path) -> None:
    stage = Stage(tmp_path, n_workers=2)
    told = stage.run({"acts": [], "starts": False}, {"acts": ["finish"] * 3})
    assert told == [("finished", "0"), ("finished", "1"), ("finished", "2")]
    assert stage.spawned[1].begun == stage.names
    assert all(worker.was_ended for worker in stage.spawned)


def test_a_job_fails_when_it_has_cost_too_many_workers(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    told = stage.run({"acts": ["die"]}, {"acts": ["die"]}, {"acts": ["finish"] * 2})
    assert told == [("retried", "0"), ("failed", "0"), ("finished", "1"), ("finished", "2")]
    assert stage.pool.workers == [stage.spawned[2]]
    error = stage.store.folder(stage.names[0]).read("error.json")
    assert error is not None
    assert error["type"] == "WorkerDied"
    assert "was lost on purpose (attempt 2)" in error["message"]


def test_a_job_that_had_not_begun_loses_no_retry(tmp_path: Path) -> None:
    stage = Stage(tmp_path, retries=0)
    lost = [{"acts": ["vanish"]}] * 5
    told = stage.run(*lost, {"acts": ["finish"] * 3})
    assert told.count(("retried", "0")) == 5
    assert told[5:] == [("finished", "0"), ("finished", "1"), ("finished", "2")]


def test_workers_that_fail_to_start_end_the_run_and_the_message_has_their_log(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    with raises("worker_failed", BadInput) as caught:
        stage.run(*[{"acts": [], "starts": False, "is_dead": True}] * 3)
    assert len(stage.spawned) == 3
    for words in stage.spawned[-1].describe_end():
        assert words in str(caught.value)


def test_a_worker_gets_jobs_that_need_what_it_has_loaded(tmp_path: Path) -> None:
    """And not those that wait for an artifact that another worker prepares."""
    fog, snow = {"corruptions": ("fog",)}, {"corruptions": ("snow",)}
    specs = [make_spec("source", seed=0, **fog), make_spec("source", seed=1, **snow)]
    specs += [make_spec("norm", seed=0, **snow), make_spec("norm", seed=1, **fog)]
    swr = [make_spec("swr", **fog), make_spec("swr", options={"lr": 0.1}, **fog)]
    suite = Suite(title="six", entries=tuple(Entry(s, f"{s.method}") for s in specs + swr))
    store = Store.create(tmp_path, suite)
    names = list(store.jobs())

    def order(*acts: Sequence[str], last: int | None = None) -> list[list[str]]:
        stage = Stage(tmp_path / "unused", n_workers=len(acts))
        stage.script = [{"acts": own} for own in acts]
        left = names if last is None else names[last:]
        Pool(store, left, tmp_path, stage.events.append, stage, 0).run()
        return [worker.begun for worker in stage.spawned]

    ((first, second, *rest),) = order(["finish"] * 6)
    assert first == names[0]
    assert second == names[3]  # the same data
    assert set(rest) == set(names) - {first, second}
    one, other = order(["finish"] * 2, ["finish"] * 2, last=3)
    assert [one[0], other[0]] == [names[3], names[4]]
    assert names[5] in (one[1:] + other[1:])


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


# Events -------------------------------------------------------------------------------------------


def test_the_time_left_is_estimated_from_the_work_done(monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    jobs = {
        "a": Entry(JobSpec(method="source"), "a"),
        "b": Entry(JobSpec(method="tent"), "b"),
        "c": Entry(JobSpec(method="tent"), "c"),
        "d": Entry(JobSpec(method="source"), "d"),
    }
    assert (weigh(jobs["a"].spec), weigh(jobs["b"].spec)) == (1, 3)
    memo = JobSpec(method="memo", protocol={"batch_size": 10})
    assert weigh(memo) > 10
    meter = Meter(jobs)

    def tell(kind, name, done=0, total=0) -> None:
        meter.take(Event(kind, name, jobs[name], done, total))

    tell("found", "d")
    tell("started", "a")
    assert (meter.n_done, meter.seconds_left) == (1, None)
    clock[0] = 10.0
    tell("progress", "a", 0, 20)
    tell("progress", "a", 10, 20)
    # 10 of 20 + 3·20 + 3·20 are done in ten seconds.
    assert meter.work == (10, 140)
    assert meter.seconds_left == pytest.approx(130)
    tell("finished", "a")
    tell("started", "b")
    # The first 15 batches were done before: nobody knows how long they took.
    tell("progress", "b", 15, 20)
    tell("progress", "b", 16, 20)
    assert meter.work == (23, 20 + 15 + 60)
    assert meter.running == {"b": (16, 20)}
    tell("failed", "b")
    tell("retried", "c")
    assert (meter.n_done, meter.n_failed, meter.running) == (2, 1, {})
    assert meter.work == (23, 23 + 60)
