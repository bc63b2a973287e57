"""BN-EMA in two passes, as a benchmark's code has it, against a plain version of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import acclimate
from acclimate.distributed import shard
from acclimate.errors import InvalidConfig
from acclimate.testing.models import Returning, tiny_batches, tiny_model
from tests.codes import raises
from tests.processes import run_on_processes
from tests.reference.oracles_statistics_methods import exchanged


class Gathering(nn.Module):
    """BatchNorm that trains when it is told to gather, and uses what it gathered otherwise."""

    def __init__(self, layer: nn.BatchNorm2d, momentum: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        self.mean, self.variance = layer.running_mean.tolist(), layer.running_var.tolist()
        self.momentum, self.gathers = momentum, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        channels = []
        for c in range(x.shape[1]):
            values = x[:, c]
            mean, variance = self.mean[c], self.variance[c]
            if self.gathers:
                n, a = values.numel(), self.momentum
                mean = float(values.sum()) / n
                square = float(((values - mean) ** 2).sum())
                self.mean[c] = (1 - a) * self.mean[c] + a * mean
                self.variance[c] = (1 - a) * self.variance[c] + a * square / (n - 1)
                variance = square / n
            normal = (values - mean) / (variance + self.eps) ** 0.5
            channels.append(normal * self.weight[c] + self.bias[c])
        return torch.stack(channels, dim=1)


@torch.no_grad()
def two_passes(model, xs, momentum=0.1):
    """Yield the logits of the second pass over each batch."""
    model = exchanged(model, nn.BatchNorm2d, lambda layer: Gathering(layer, momentum))
    layers = [m for m in model.modules() if isinstance(m, Gathering)]
    for x in xs:
        for layer in layers:
            layer.gathers = True
        model(x)
        for layer in layers:
            layer.gathers = False
        yield model(x)


def stream(dtype=torch.float64, n=5):
    return [x for x, _ in tiny_batches(n, 8, seed=3, dtype=dtype)]


def largest(found, expected):
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("dtype", "n", "tolerance"), [(torch.float64, 5, 1e-8), (torch.float32, 1, 1e-5)]
)
@pytest.mark.parametrize("momentum", [0.1, 0.7])
def test_two_passes(momentum, dtype, n, tolerance):
    model, xs = tiny_model("batch_norm").to(dtype), stream(dtype, n)
    expected = list(two_passes(model, xs, momentum))
    adapted = acclimate.adapt(model, "bn_ema", passes="two", statistics_momentum=momentum)
    assert largest([adapted(x) for x in xs], expected) < tolerance
    assert adapted.counts.forwards == 2 * n


def test_the_two_variants_differ():
    model, xs = tiny_model("batch_norm").double(), stream()
    one = acclimate.adapt(model, "bn_ema", statistics_momentum=0.5)
    found = [one(x) for x in xs]
    assert one.counts.forwards == len(xs)
    expected = list(two_passes(one.unwrap(), xs, 0.5))
    assert largest(found, expected) > 1e-3


def test_two_passes_leave_the_source_when_reset_and_do_not_move_in_evaluation():
    model, xs = tiny_model("batch_norm").double(), stream(n=2)
    adapted = acclimate.adapt(model, "bn_ema", passes="two")
    first = adapted(xs[0])
    with adapted.paused():
        again = adapted(xs[0])
        assert torch.equal(adapted(xs[0]), again)
    # The statistics have moved once, and predict the same again.
    assert largest([again], [first]) < 1e-12
    adapted.reset()
    assert torch.equal(adapted(xs[0]), first)


def test_a_single_image_has_no_first_pass():
    model, xs = tiny_model("batch_norm").double(), stream(n=2)
    adapted = acclimate.adapt(model, "bn_ema", passes="two")
    adapted(xs[0])
    before = {name: t.clone() for name, t in model.state_dict().items()}
    found = adapted(xs[1][:1])
    assert adapted.counts.skipped == {"single": 1}
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert largest([found], [model.eval()(xs[1][:1]).detach()]) < 1e-12


def test_what_else_the_model_returns_is_of_the_second_pass():
    def make(logits, mean):
        return {"logits": logits, "double": 2 * logits}

    adapted = acclimate.adapt(Returning(make), "bn_ema", passes="two")
    output = adapted(stream(torch.float32, 1)[0])
    assert torch.allclose(output["double"], 2 * output["logits"])


def test_two_passes_are_for_running_statistics():
    with raises("conflicting_options", InvalidConfig, options=("passes", "statistics")):
        acclimate.adapt(tiny_model("batch_norm"), "bn_ema", passes="two", statistics="batch")


def share(rank, sizes):
    """Return the logits of the samples of one process."""
    adapted = shard(acclimate.adapt(tiny_model("batch_norm").double(), "bn_ema", passes="two"))
    return [adapted(x.split(sizes)[rank]) for x in stream(n=3)]


@pytest.mark.slow
def test_processes_that_share_a_batch_predict_the_same(tmp_path):
    sizes = (5, 3)
    adapted = acclimate.adapt(tiny_model("batch_norm").double(), "bn_ema", passes="two")
    expected = [adapted(x) for x in stream(n=3)]
    first, second = run_on_processes(2, share, tmp_path, sizes)
    found = [torch.cat(parts) for parts in zip(first, second, strict=True)]
    assert largest(found, expected) < 1e-12


@pytest.mark.parametrize("n", [1, 2])
def test_two_passes_on_pixels(n):
    """The pixels of one image have statistics of their own."""
    model = tiny_model("dense").double()
    x = torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    expected = list(two_passes(model, [x, x]))
    adapted = acclimate.adapt(model, "bn_ema", passes="two")
    assert largest([adapted(x), adapted(x)], expected) < 1e-8
