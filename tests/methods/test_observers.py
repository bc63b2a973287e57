"""Functions that observe batches, updates and restored states, and the log."""

from __future__ import annotations

import copy
import logging

import pytest
import torch

import acclimate
from acclimate import Guard
from acclimate.testing.cases import METHOD_OPTIONS, Case, tiny_artifact
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises
from tests.guarding import script_gain

BATCHES = tiny_batches(4, 16, seed=5)


def adapt(method, **options):
    model = next(m for m in ("batch_norm", "instance_aware") if Case(method, m).suits)
    own = {**METHOD_OPTIONS.get(method, {}), **options}
    return acclimate.adapt(tiny_model(model), method, tiny_artifact(model), **own)


def observe(adapted):
    seen = []
    for event in ("batch", "update", "restore"):
        register = getattr(adapted, f"on_{event}")
        register(lambda own, logits, event=event: seen.append((event, own, logits.clone())))
    return seen


@pytest.mark.parametrize("method", acclimate.list_methods())
def test_observers_see_what_was_returned_and_counted(method):
    adapted = adapt(method)
    seen = observe(adapted)
    for x, y in BATCHES:
        if adapted.card.is_oracle:
            adapted.reveal(y)
        n_updates, n_restored = adapted.counts.updates, adapted.counts.restored
        seen.clear()
        logits = adapted(x)
        expected = ["batch"]
        expected += ["update"] * (adapted.counts.updates > n_updates)
        expected += ["restore"] * (adapted.counts.restored > n_restored)
        assert [event for event, *_ in seen] == expected
        assert all(own is adapted for _, own, _ in seen)
        assert all(torch.equal(found.to(logits.dtype), logits) for *_, found in seen)


def test_a_batch_that_is_learned_from_later_is_reported_then():
    adapted = adapt("tent")
    seen = observe(adapted)
    adapted.predict(BATCHES[0][0])
    assert seen == []
    adapted.learn()
    assert [event for event, *_ in seen] == ["batch", "update"]
    with adapted.paused():
        adapted(BATCHES[1][0])
    assert [event for event, *_ in seen[2:]] == ["batch"]
    adapted.predict(BATCHES[1][0])
    adapted.discard()
    assert len(seen) == 3


def test_a_batch_that_fails_is_not_reported():
    adapted = adapt("tent")
    seen = observe(adapted)
    with raises("wrong_shape"):
        adapted(torch.rand(3))
    assert seen == []


@pytest.mark.filterwarnings("ignore:Adaptation seems to hurt")
def test_a_state_that_the_guard_restores_is_reported(caplog):
    artifact = script_gain(tiny_artifact("batch_norm"), -0.5)
    guard = Guard(artifact, patience=16)
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent", artifact, guard=guard)
    seen = observe(adapted)
    with caplog.at_level(logging.INFO, logger="acclimate"):
        for x, _ in tiny_batches(8, 16, seed=5):
            adapted(x)
    restored = [event for event, *_ in seen if event == "restore"]
    assert len(restored) == adapted.counts.restored > 0
    assert [record.name for record in caplog.records] == ["acclimate.adaptation"] * len(restored)


def test_an_observer_may_read_the_state_but_not_call_the_model(tmp_path):
    adapted = adapt("tent")
    taken = []
    handle = adapted.on_batch(lambda own, logits: taken.append(own.snapshot()))
    adapted.on_update(lambda own, logits: own.save(tmp_path / "state"))
    adapted(BATCHES[0][0])
    assert (tmp_path / "state").is_file()
    assert len(taken) == 1
    handle.remove()
    handle = adapted.on_batch(lambda own, logits: own(BATCHES[1][0]))
    with raises("reentrant"):
        adapted(BATCHES[0][0])
    handle.remove()
    assert adapted.counts.batches == 2  # the batch was complete
    adapted(BATCHES[1][0])
    assert len(taken) == 1


def test_an_observer_that_raises_leaves_the_batch_learned():
    plain, observed = adapt("tent"), adapt("tent")

    def fail(own, logits):
        raise RuntimeError("the disk is full")

    observed.on_update(fail)
    plain(BATCHES[0][0])
    with pytest.raises(RuntimeError, match="the disk is full"):
        observed(BATCHES[0][0])
    for own, other in zip(plain.parameters(), observed.parameters(), strict=True):
        assert torch.equal(own, other)
    assert plain.counts == observed.counts


def test_a_copy_has_no_observers():
    adapted = adapt("tent")
    seen = observe(adapted)
    copy.deepcopy(adapted)(BATCHES[0][0])
    assert seen == []
    adapted(BATCHES[0][0])
    assert seen
