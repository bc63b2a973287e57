"""The guard: a stream that collapses without it does not with it."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.nn.functional as F

import acclimate
from acclimate import Guard
from acclimate.errors import ArtifactMissing, InvalidConfig
from acclimate.methods.state import Counts
from acclimate.testing.models import tiny_batches, tiny_model

# Plain entropy minimisation at a rate far too high, without the help of batch statistics.
RECKLESS = {"optimizer": "sgd", "lr": 10.0, "statistics": "source"}


@functools.cache
def trained():
    """A source model that knows its classes, and its artifact."""
    torch.manual_seed(0)  # of the dropout
    model = tiny_model("batch_norm").train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for x, y in tiny_batches(150, 32, seed=1):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    options = acclimate.PenaltyOptions(n_samples=16)
    return model, acclimate.prepare(model, tiny_batches(8, 32, seed=2), penalty=options)


def adapt(**options):
    model, artifact = trained()
    return acclimate.adapt(copy.deepcopy(model), "tent", artifact, **options)


def stream(n=30):
    return [x for x, _ in tiny_batches(n, 32, seed=9)]


def classes_over(adapted):
    """Number of classes predicted in each batch."""
    return [int(adapted(x).argmax(1).unique().numel()) for x in stream()]


def test_the_stream_collapses_without_the_guard():
    found = classes_over(adapt(**RECKLESS))
    assert max(found[:4]) == 4
    # Steps this large are chaotic: the order of summation decides about single batches.
    assert sum(n == 1 for n in found[-20:]) >= 18


def test_and_recovers_with_it():
    adapted = adapt(guard=True, **RECKLESS)
    found = classes_over(adapted)
    assert adapted.counts.restored >= 2
    assert sum(n >= 3 for n in found[-20:]) >= 10


def test_a_healthy_stream_is_left_alone():
    plain, guarded = adapt(), adapt(guard=True)
    for x in stream():
        assert torch.equal(plain(x), guarded(x))
    assert guarded.counts.restored == 0


def test_the_guard_s_state_is_saved_too(tmp_path):
    xs = stream(24)

    def build():
        return adapt(guard=True, **RECKLESS)

    uncut = build()
    expected = [uncut(x) for x in xs]
    assert uncut.counts.restored >= 1
    for cut in (1, 3, 7, 12, 20):
        first = build()
        for x in xs[:cut]:
            first(x)
        first.save(tmp_path / "state")
        second = build().load(tmp_path / "state")
        for x, logits in zip(xs[cut:], expected[cut:], strict=True):
            assert torch.equal(second(x), logits)
        assert second.counts == uncut.counts
    uncut.reset()
    assert uncut.counts.restored == 0
    assert torch.equal(uncut(xs[0]), expected[0])


def test_the_guard_needs_the_source_s_predictions():
    with pytest.raises(ArtifactMissing, match="guard compares"):
        acclimate.adapt(tiny_model("batch_norm"), "tent", guard=True)


@pytest.mark.parametrize(("n_classes", "batch_size"), [(1000, 64), (1000, 200), (100, 16)])
def test_many_classes_are_no_collapse(n_classes, batch_size):
    """A batch cannot show more classes than it has samples."""
    guard = Guard(artifact_of(n_classes))
    method = Watched()
    draws = torch.Generator().manual_seed(0)
    for _ in range(100):
        y = torch.randint(n_classes, (batch_size,), generator=draws)
        guard.watch(method, 20.0 * F.one_hot(y, n_classes).float())
    assert method.counts.restored == 0
    for _ in range(200):
        guard.watch(method, 30.0 * F.one_hot(y * 0, n_classes).float())
    assert method.counts.restored >= 1


class Watched:
    """As much of a method as the guard looks at."""

    def __init__(self):
        self.counts = Counts()

    def initial(self):
        return {}

    def learned(self):
        return {}

    def load_learned(self, tree):
        pass


def artifact_of(n_classes):
    tensors = {
        "predictions/mean": torch.full((n_classes,), 1 / n_classes),
        "predictions/entropy": torch.tensor(0.1),
    }
    return acclimate.Artifact(tensors, {"parts": {"features": {}}})


@pytest.mark.parametrize("options", [{"patience": 0}, {"narrow": -3}, {"decay": 1.0}])
def test_illegal_options(options):
    with pytest.raises(InvalidConfig, match=next(iter(options))):
        Guard(artifact_of(4), **options)
