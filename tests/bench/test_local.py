"""Jobs in processes of their own: they share the work, and one that dies is replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from acclimate.bench import Entry, JobSpec, Store, Suite, run_suite
from acclimate.bench.folder import JobFolder
from acclimate.bench.workers import count_cores, share_threads
from acclimate.errors import BadInput
from tests.bench.jobs import environment, make_spec, read_lines, run_once, stable, sums

# Seconds on a free core; several processes may have to share a busy one.
pytestmark = pytest.mark.timeout(900)

CLI = [sys.executable, "-c", "from acclimate.cli.main import main; main()", "bench", "run"]


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


def wait_until(holds: Callable[[], bool], seconds: float = 400.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def has_records(folder: Path, n: int) -> Callable[[], bool]:
    path = folder / "records.jsonl"
    return lambda: path.is_file() and path.read_bytes().count(b"\n") >= n


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    """A suite with all that can go wrong, run by two workers."""
    root = tmp_path_factory.mktemp("spread")
    (root / "1.ticket").touch()
    specs = {
        "source": make_spec("source"),
        "bad": make_spec("tent", model="tests.bench.models:nowhere"),
        "doomed": make_spec("tent", model="tests.bench.models:doomed"),
        "mortal": make_spec("tent", model="tests.bench.models:mortal"),
        "swr": make_spec("swr"),
        "tent+swr": make_spec("tent", regularizer={}),
    }
    events = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(ACCLIMATE_TEST_DEATHS=str(root)).items():
            patch.setenv(name, value)
        outcomes = run_suite(
            make_suite(*specs.values()),
            root / "out",
            n_workers=2,
            retries=1,
            on_event=events.append,
            checkpoint_every=2,
            command="acclimate bench run",
        )
    return root / "out", specs, events, outcomes


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
    assert "was ended by SIGKILL (try 2)" in doomed["message"]
    assert "fewer --workers" in doomed["remedy"]
    assert not (out.parent / "1.ticket").exists()
    kinds = [(event.kind, event.entry.spec.model.partition(":")[2]) for event in events]
    assert kinds.count(("retried", "doomed")) == kinds.count(("retried", "mortal")) == 1
    assert kinds.count(("failed", "doomed")) == kinds.count(("failed", "nowhere")) == 1
    assert kinds.count(("finished", "mortal")) == 1
    progress = [e for e in events if e.kind == "progress" and e.entry.spec == specs["source"]]
    assert (progress[-1].done, progress[-1].total) == (12, 12)


def test_what_is_done_is_not_run_again(spread, monkeypatch) -> None:
    out, specs, _, outcomes = spread

    def refuse(*arguments, **options):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("acclimate.bench.local.WorkerProcess", refuse)
    events = []
    suite = make_suite(*(specs[name] for name in ("source", "mortal", "swr", "tent+swr")))
    again = run_suite(suite, out, n_workers=2, on_event=events.append)
    assert [event.kind for event in events] == ["found"] * 4
    assert [own.result.to_dict() for own in again] == [own.result.to_dict() for own in outcomes]


def test_cores_are_divided(monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("acclimate.bench.workers.count_cores", lambda: 8)
    assert [share_threads(n) for n in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [share_threads(n) for n in (1, 2, 8)] == [3, 3, 1]
    assert count_cores() >= 1


def test_what_cannot_be_asked_for_is_refused(tmp_path: Path) -> None:
    suite = make_suite(make_spec("source"))
    for options, says in (
        ({"engine": "lokal"}, 'no engine "lokal". Did you mean "local"'),
        ({"n_workers": -1}, "at least 1 worker, found -1"),
        ({"retries": -1}, "at least 0 retries"),
        ({"checkpoint_every": 0}, "at least 1 batch"),
    ):
        with pytest.raises(BadInput, match=says):
            run_suite(suite, tmp_path, **options)


def test_a_worker_that_cannot_start_is_explained(tmp_path: Path, monkeypatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(BadInput, match=r"(?s)ended with code 3.*no such thing"):
        run_suite(make_suite(make_spec("source")), tmp_path / "out", n_workers=1)


SHARE = """
import json, sys
from acclimate.bench import Suite, run_suite
events = []
suite = Suite.load(sys.argv[1])
found = run_suite(suite, sys.argv[2], n_workers=0, on_event=events.append, checkpoint_every=1)
kinds = [(event.kind, event.name) for event in events if event.kind not in ("stage", "progress")]
print(json.dumps({"events": kinds, "errors": [own.error for own in found]}))
"""


def test_two_processes_share_the_work_in_one_folder(tmp_path: Path) -> None:
    suite = write_suite(
        tmp_path / "suite.toml", 'method = ["source", "norm", "bn_ema"]\nimages = 24\nseed = [0, 1]'
    )
    command = [sys.executable, "-c", SHARE, str(suite), str(tmp_path / "out")]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True)
        for _ in range(2)
    ]
    said = [json.loads(process.communicate(timeout=500)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0]["errors"] == said[1]["errors"]
    assert len(said[0]["errors"]) == 6
    started = [name for own in said for kind, name in own["events"] if kind == "started"]
    assert sorted(started) == sorted(set(started))
    assert len(started) == 6
    for own in said:
        ends = [name for kind, name in own["events"] if kind in ("finished", "found")]
        assert sorted(ends) == sorted(started)
    for entry in Suite.load(suite).entries:
        folder = tmp_path / "out" / "jobs" / f"{entry.spec.method}-{entry.spec.key}"
        assert run_once(entry.spec, tmp_path / folder.name) == "finished"
        assert stable(folder) == stable(tmp_path / folder.name)


def test_an_interruption_without_workers_leaves_a_checkpoint(tmp_path: Path, launch) -> None:
    suite = write_suite(tmp_path / "suite.toml", 'method = "bn_ema"\nimages = 60')
    (entry,) = Suite.load(suite).entries
    job = tmp_path / "out" / "jobs" / f"bn_ema-{entry.spec.key}"
    process = launch([*CLI, str(suite), "--out", str(tmp_path / "out"), "--workers", "0"])
    wait_until(has_records(job, 3))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "say the same again to go on" in said
    place = json.loads((job / "checkpoint.json").read_text())
    assert place["n_batches"] == len(read_lines(job)) >= 3


def test_an_interruption_leaves_a_checkpoint_and_no_process(tmp_path: Path, launch) -> None:
    """Ctrl-C reaches all processes of a terminal; a dead parent reaches none of them."""
    suite = write_suite(tmp_path / "suite.toml", 'method = "bn_ema"\nimages = 120')
    (entry,) = Suite.load(suite).entries
    job = tmp_path / "out" / "jobs" / f"bn_ema-{entry.spec.key}"
    command = [*CLI, str(suite), "--out", str(tmp_path / "out"), "--workers", "1"]
    first = launch(command)
    wait_until(has_records(job, 3))
    os.killpg(first.pid, signal.SIGINT)
    _, said = first.communicate(timeout=300)
    assert first.returncode != 0
    assert "say the same again to go on" in said
    with pytest.raises(ProcessLookupError):
        os.killpg(first.pid, 0)
    assert JobFolder(job).state == "cut"
    n_records = len(read_lines(job))
    place = json.loads((job / "checkpoint.json").read_text())
    assert place["n_batches"] == n_records >= 3

    second = launch(command)
    wait_until(has_records(job, n_records + 3))
    second.kill()
    second.communicate(timeout=300)
    wait_until(lambda: JobFolder(job).state == "cut")
    place = json.loads((job / "checkpoint.json").read_text())
    assert place["n_batches"] == len(read_lines(job)) >= n_records + 3

    third = launch(command)
    _, said = third.communicate(timeout=500)
    assert third.returncode == 0, said
    assert run_once(entry.spec, tmp_path / "uncut") == "finished"
    assert stable(job) == stable(tmp_path / "uncut")
    assert sums(job) == sums(tmp_path / "uncut")
