"""The guard: a stream that collapses without it does not with it."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import acclimate
from acclimate import Guard
from acclimate.methods import METHODS
from acclimate.methods.method import Counts
from acclimate.testing.models import N_CLASSES, tiny_batches, tiny_model
from tests.codes import raises


class Drifting(acclimate.GradientMethod):
    """Raises the logit of class 0 by the learning rate with every batch.

    Paper: none. Moves the bias of the head. Returns the logits before the update.
    Cost of a batch: 1 forward, 1 backward.

    The gradient is exactly -1 whatever the batch is, so that the collapse comes after the same
    number of batches on every machine.
    """

    name = "drifting"

    @classmethod
    def trainable(cls, model, config):
        return {"head.bias": model.head.bias}

    def loss(self, x):
        logits = self.run(x).logits
        return logits, -logits[:, 0].mean()


class NearestColour(nn.Module):
    """Knows the classes of `tiny_batches` without training: the nearest mean colour."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, N_CLASSES)
        batches = tiny_batches(20, 32, seed=1)
        colours = torch.cat([x for x, _ in batches]).mean((2, 3))
        labels = torch.cat([y for _, y in batches])
        means = torch.stack([colours[labels == k].mean(0) for k in range(N_CLASSES)])
        with torch.no_grad():
            self.head.weight.copy_(200 * means)
            self.head.bias.copy_(-100 * means.square().sum(1))

    def forward(self, x):
        return self.head(x.mean((2, 3)))


@functools.cache
def source():
    """The source model and its artifact."""
    model = NearestColour().eval()
    return model, acclimate.prepare(model, tiny_batches(8, 32, seed=2), parts=["features"])


@pytest.fixture
def drift(monkeypatch):
    """Adapt by the method that drifts towards class 0."""
    monkeypatch.setitem(METHODS, "drifting", Drifting)
    model, artifact = source()

    def build(guard):
        return acclimate.adapt(
            copy.deepcopy(model), "drifting", artifact, optimizer="sgd", lr=5.0, guard=guard
        )

    return build


def stream(n=30):
    return [x for x, _ in tiny_batches(n, 32, seed=9)]


def classes_over(adapted):
    """Number of classes predicted in each batch."""
    return [int(adapted(x).argmax(1).unique().numel()) for x in stream()]


def test_the_stream_collapses_without_the_guard(drift):
    found = classes_over(drift(guard=False))
    assert found[:2] == [N_CLASSES] * 2
    assert found[-15:] == [1] * 15


def test_and_recovers_with_it(drift):
    adapted = drift(guard=True)
    found = classes_over(adapted)
    assert adapted.counts.restored >= 2
    assert sum(n == N_CLASSES for n in found[-15:]) >= 3


def test_a_healthy_stream_is_left_alone():
    model, artifact = source()
    options = {"lr": 1e-4, "statistics": "source"}
    plain = acclimate.adapt(copy.deepcopy(model), "entropy", artifact, **options)
    guarded = acclimate.adapt(copy.deepcopy(model), "entropy", artifact, guard=True, **options)
    for x in stream():
        assert torch.equal(plain(x), guarded(x))
    assert guarded.counts.restored == 0


def test_the_guard_s_state_is_saved_too(tmp_path, drift):
    xs = stream(24)
    uncut = drift(guard=True)
    expected = [uncut(x) for x in xs]
    assert uncut.counts.restored >= 1
    for cut in (1, 3, 7, 12, 20):
        first = drift(guard=True)
        for x in xs[:cut]:
            first(x)
        first.save(tmp_path / "state")
        second = drift(guard=True).load(tmp_path / "state")
        for x, logits in zip(xs[cut:], expected[cut:], strict=True):
            assert torch.equal(second(x), logits)
        assert second.counts == uncut.counts
    uncut.reset()
    assert uncut.counts.restored == 0
    assert torch.equal(uncut(xs[0]), expected[0])


def test_the_guard_needs_the_source_s_predictions():
    with raises("missing_parts", parts=("features",)):
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
    with raises("invalid_options", problems=lambda found: set(found) == set(options)):
        Guard(artifact_of(4), **options)
