"""The estimate of the time that a suite still takes."""

from __future__ import annotations

import pytest

from acclimate.bench import Entry, Event, JobSpec
from acclimate.cli.progress import Meter, weigh


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
