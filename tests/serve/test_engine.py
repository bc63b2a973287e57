"""Batching, learning in the background, back-pressure, and going on after a restart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from acclimate.errors import BadInput, ServerBusy
from acclimate.serve.engine import Engine
from acclimate.serve.telemetry import Telemetry
from acclimate.sessions import Replica, Sessions
from acclimate.testing.cases import tiny_artifact
from acclimate.testing.models import tiny_model
from tests.codes import raises
from tests.serve.make import make_engine, make_images


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> Iterator[threading.Event]:
    """Hold back every call of a method until the event is set."""
    release, original = threading.Event(), getattr(kind, name)

    def wait(*args: Any, **kwargs: Any) -> Any:
        release.wait(30)
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, wait)
        try:
            yield release
        finally:
            release.set()


def test_requests_of_a_stream_are_answered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[str, int]] = []
    engine = make_engine(max_batch=4)
    engine.telemetry = Telemetry()
    engine.telemetry.note_answers = lambda stream, n, by: sizes.append((stream, n))
    with held(monkeypatch, Replica, "predict") as release:
        first = engine.submit("a", make_images(1))
        while engine._streams["a"].requests:  # it is being answered
            pass
        later = [engine.submit("a", make_images(1, seed)) for seed in range(6)]
        other = engine.submit("b", make_images(2))
        release.set()
        answers = [future.result(30) for future in [first, *later, other]]
    engine.close()
    assert [len(answer.logits) for answer in answers] == [1] * 7 + [2]
    assert sizes == [("a", 1), ("a", 4), ("a", 2), ("b", 2)]


def test_answers_do_not_wait_for_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(learn_batch=8, learn_queue=16)
    left_out: list[int] = []
    engine.telemetry = Telemetry()
    engine.telemetry.note_left_out = lambda stream, n: left_out.append(n)
    with held(monkeypatch, Sessions, "step"):
        engine.submit("a", make_images(8)).result(30)
        while engine._streams["a"].n_to_learn:  # it is being learned from
            pass
        for seed in range(4):  # learning stands still; two batches fit into its queue
            engine.submit("a", make_images(8, seed)).result(30)
        assert engine.get_stream("a")["queue"] == 16
    assert left_out == [8, 8]
    engine.close()


def test_a_full_queue_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(max_queue=8)
    with held(monkeypatch, Replica, "predict"):
        futures = [engine.submit("a", make_images(4))]
        while engine._streams["a"].requests:
            pass
        futures += [engine.submit("a", make_images(4)) for _ in range(2)]
        with raises("queue_full", stream="a"):
            engine.submit("a", make_images(1))
        futures.append(engine.submit("b", make_images(1)))  # other streams have their own queue
    assert all(future.result(30) for future in futures)
    engine.close()


def test_learning_that_is_behind_refuses_if_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(learn_batch=8, learn_queue=8, when_behind="refuse")
    with held(monkeypatch, Sessions, "step"):
        engine.submit("a", make_images(8)).result(30)
        while engine._streams["a"].n_to_learn:  # it is being learned from
            pass
        engine.submit("a", make_images(8)).result(30)
        with raises("queue_full", stream="a"):
            engine.submit("a", make_images(1))
    engine.close()


def test_images_that_are_being_answered_count_as_well(monkeypatch) -> None:
    """All of them will be learned from, so the queue must have room for them."""
    engine = make_engine(learn_batch=8, learn_queue=8, when_behind="refuse")
    engine.submit("a", make_images(8)).result(30)
    stream = engine._streams["a"]
    while stream.status.counts.batches < 1:
        pass
    with held(monkeypatch, Replica, "predict"):
        answer = engine.submit("a", make_images(8))
        while stream.n_waiting:  # it is being answered
            pass
        with raises("queue_full", stream="a"):
            engine.submit("a", make_images(1))
    answer.result(30)
    assert engine.close() is not None


def test_a_state_that_cannot_be_saved_does_not_stop_the_answers(monkeypatch, tmp_path) -> None:
    engine = make_engine(learn_batch=8, save_every=1, folder=tmp_path)

    def fail(self: Sessions, stream: str) -> None:
        raise BadInput("not_writable", "The disk is full.", path=tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(Sessions, "save", fail)
        engine.submit("a", make_images(8)).result(30)
        while engine.get_stream("a")["batches"] < 1:
            pass
        assert len(engine.submit("a", make_images(8)).result(30).logits) == 8
        kinds = [event["text"] for event in engine.get_history("a")["events"]]
        assert "The state was not saved: The disk is full." in kinds
    assert engine.is_ready
    engine.close()


def test_closing_learns_and_saves_what_waits(tmp_path: Path) -> None:
    engine = make_engine(folder=tmp_path, learn_batch=8)
    for seed in range(5):
        engine.submit("a", make_images(4, seed)).result(30)
    engine.close()
    with pytest.raises(ServerBusy):
        engine.submit("a", make_images(4))
    again = make_engine(folder=tmp_path)
    assert again.get_stream("a")["samples"] == 20
    again.close()


def test_it_learns_what_a_plain_session_learns(tmp_path: Path) -> None:
    engine = make_engine(folder=tmp_path, learn_batch=8)
    images = make_images(32)
    for x in images.split(4):
        engine.submit("a", x).result(30)
    engine.close()
    plain = Sessions(tiny_model("batch_norm"), "tent", tiny_artifact("batch_norm"))
    for x in images.split(8):
        plain["a"](x)
    options = {"folder": tmp_path}
    served = Sessions(tiny_model("batch_norm"), "tent", tiny_artifact("batch_norm"), **options)
    probe = make_images(8, 9)
    assert torch.equal(served["a"](probe), plain["a"](probe))


def test_actions(tmp_path: Path) -> None:
    engine = make_engine(folder=tmp_path)

    def learn(n: int) -> None:
        engine.submit("a", make_images(8)).result(30)
        wait_for(engine, "a", n)

    learn(1)
    with raises("no_snapshot", stream="a"):
        engine.act("a", "rollback")
    assert engine.act("a", "snapshot")["has_snapshot"]
    learn(2)
    assert engine.act("a", "rollback")["batches"] == 1
    assert engine.act("a", "pause")["state"] == "paused"
    engine.submit("a", make_images(8)).result(30)
    assert engine.get_stream("a")["queue"] == 0
    assert engine.act("a", "resume")["state"] == "learning"
    learn(2)
    assert engine.act("a", "reset")["batches"] == 0
    kinds = [event["kind"] for event in engine.get_history("a")["events"]]
    assert kinds == ["snapshot", "rollback", "pause", "resume", "reset"]
    for name in ("act", "get_history"):
        with raises("unknown_name", kind="stream"):
            getattr(engine, name)(*["b", "pause"][: 2 if name == "act" else 1])
    with raises("unknown_name", kind="action"):
        engine.act("a", "destroy")
    engine.close()


def wait_for(engine: Engine, stream: str, batches: int) -> None:
    while len(engine.get_history(stream)["points"]) == 0 or (
        engine.get_stream(stream)["batches"] < batches
    ):
        threading.Event().wait(0.005)


def test_a_batch_that_cannot_be_learned_from_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()

    def fail(*args: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Sessions, "step", fail)
        engine.submit("a", make_images(8)).result(30)
        while not engine.get_history("a")["events"]:
            threading.Event().wait(0.005)
    engine.submit("a", make_images(8)).result(30)
    wait_for(engine, "a", 1)
    assert engine.problem is None
    assert engine.get_history("a")["events"][0]["kind"] == "warning"
    engine.close()


def test_a_guarded_stream_has_an_estimate() -> None:
    engine = make_engine(guard=True, method="tent")
    for seed in range(8):
        engine.submit("a", make_images(8, seed)).result(30)
        wait_for(engine, "a", seed + 1)
    status = engine.get_stream("a")
    assert set(status["estimate"]) >= {"source", "adapted", "gain", "n_samples", "is_familiar"}
    answer = engine.submit("a", make_images(1)).result(30)
    assert answer.answered_by == status["answers"]
    assert answer.estimate == status["estimate"]
    point = engine.get_history("a")["points"][-1]
    assert point["adapted"]["low"] <= point["adapted"]["value"] <= point["adapted"]["high"]
    assert engine.get_history("a")["recent"]
    engine.close()


def test_limits(tmp_path: Path) -> None:
    engine = make_engine(max_streams=1, max_queue=4)
    engine.submit("a", make_images(1)).result(30)
    with raises("too_many_streams", limit=1):
        engine.submit("b", make_images(1))
    with raises("too_many_images", limit=4):
        engine.submit("a", make_images(5))
    with raises("wrong_shape"):
        engine.submit("a", torch.rand(2, 3, 9, 9))
    with raises("not_finite"):
        engine.submit("a", torch.full((2, 3, 8, 8), torch.nan))
    engine.close()
