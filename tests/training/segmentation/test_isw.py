"""Instance selective whitening against loops written separately."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from acclimate.training.isw import (
    SelectiveWhitening,
    cluster_line,
    find_variances,
    select_pairs,
    whitening_loss,
)
from acclimate.zoo.segmentation import InstanceWhitening
from tests.codes import raises


def slow_covariance(features: Tensor) -> Tensor:
    """Covariances of one image by the textbook: pixel by pixel, pair by pair."""
    channels, height, width = features.shape
    result = torch.zeros(channels, channels, dtype=features.dtype)
    for a, b in itertools.product(range(channels), repeat=2):
        total = 0.0
        for row, column in itertools.product(range(height), range(width)):
            total += float(features[a, row, column]) * float(features[b, row, column])
        result[a, b] = total / (height * width - 1)
    return result


def standardise(features: Tensor) -> Tensor:
    flat = features.flatten(2)
    flat = flat - flat.mean(2, keepdim=True)
    flat = flat / (flat.square().mean(2, keepdim=True) + 1e-5).sqrt()
    return flat.view_as(features)


def slow_clusters(values: list[float], k: int) -> float:
    """Least sum of squared distances over all ways to cut sorted numbers into k intervals."""
    ordered = sorted(values)
    best = float("inf")
    for cuts in itertools.combinations(range(1, len(ordered)), k - 1):
        ends = [0, *cuts, len(ordered)]
        total = 0.0
        for first, end in itertools.pairwise(ends):
            part = ordered[first:end]
            centre = sum(part) / len(part)
            total += sum((value - centre) ** 2 for value in part)
        best = min(best, total)
    return best


def cost_of(values: list[float], groups: list[int]) -> float:
    total = 0.0
    for group in set(groups):
        part = [value for value, own in zip(values, groups, strict=True) if own == group]
        centre = sum(part) / len(part)
        total += sum((value - centre) ** 2 for value in part)
    return total


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(-100, 100, width=16), min_size=2, max_size=11, unique=True),
    st.integers(1, 4),
)
def test_the_clusters_are_the_best_there_are(values: list[float], k: int) -> None:
    k = min(k, len(values))
    groups = cluster_line(np.array(values), k).tolist()
    assert sorted(set(groups)) == list(range(k))
    assert cost_of(values, groups) == pytest.approx(slow_clusters(values, k), rel=1e-9, abs=1e-9)
    order = np.argsort(values)
    assert (np.diff(np.array(groups)[order]) >= 0).all()


def test_clusters_of_many_numbers_and_of_equal_ones() -> None:
    draws = np.random.default_rng(0)
    centres = np.repeat([0.0, 1.0, 5.0], [5000, 3000, 100])
    values = centres + 0.01 * draws.standard_normal(len(centres))
    assert np.array_equal(cluster_line(values, 3), np.repeat([0, 1, 2], [5000, 3000, 100]))
    assert cluster_line(np.array([2.0, 2.0, 2.0, 7.0]), 3).tolist() == [0, 0, 0, 1]
    tiny = 1e-9 * values + 1e-4
    assert np.array_equal(cluster_line(tiny, 3), np.repeat([0, 1, 2], [5000, 3000, 100]))


def test_variances_and_masks_equal_the_oracle() -> None:
    generator = torch.Generator().manual_seed(3)
    x = standardise(torch.randn(3, 5, 4, 6, generator=generator, dtype=torch.float64))
    other = standardise(x + 0.7 * torch.randn(3, 5, 4, 6, generator=generator).double())
    expected = torch.zeros(5, 5, dtype=torch.float64)
    for image, view in zip(x, other, strict=True):
        both = torch.stack([slow_covariance(image), slow_covariance(view)])
        mean = both.mean(dim=0)
        expected += ((both[0] - mean) ** 2 + (both[1] - mean) ** 2) / 2 / len(x)
    found = find_variances(x, other)
    # Without the diagonal, where differences of numbers near 1 are rounding.
    assert torch.allclose(found.triu(1), expected.triu(1), rtol=1e-12, atol=0)

    pairs = list(itertools.combinations(range(5), 2))
    values = [float(expected[a, b]) for a, b in pairs]
    ordered = sorted(values)
    cuts = {
        cost_of(values, [sum(value >= ordered[cut] for cut in two) for value in values]): two
        for two in itertools.combinations(range(1, len(ordered)), 2)
    }
    threshold = ordered[cuts[min(cuts)][0]]
    mask = select_pairs(found, 3)
    for row, column in itertools.product(range(5), repeat=2):
        sensitive = column > row and float(expected[row, column]) >= threshold
        assert bool(mask[row, column]) == sensitive
    assert 0 < int(mask.sum()) < len(pairs)


@pytest.mark.parametrize("margin", [0.0, 0.8])
def test_the_loss_equals_the_oracle(margin: float) -> None:
    generator = torch.Generator().manual_seed(4)
    x = standardise(torch.randn(3, 4, 5, 3, generator=generator, dtype=torch.float64))
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[0, 2] = mask[1, 3] = mask[2, 3] = True
    losses = []
    for image in x:
        covariance = slow_covariance(image)
        total = sum(abs(float(covariance[a, b])) for a, b in ((0, 2), (1, 3), (2, 3)))
        losses.append(max(total - margin, 0.0) / 3)
    assert float(whitening_loss(x, mask, margin)) == pytest.approx(sum(losses) / 3, rel=1e-12)
    assert float(whitening_loss(x, torch.zeros(4, 4, dtype=torch.bool))) == 0


def test_the_gradient_is_right() -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, 3, 2, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
    whitening_loss(x, mask).backward()
    with torch.no_grad():
        for place in range(x.numel()):
            step = torch.zeros_like(x)
            step.view(-1)[place] = 1e-6
            slope = (whitening_loss(x + step, mask) - whitening_loss(x - step, mask)) / 2e-6
            assert float(x.grad.view(-1)[place]) == pytest.approx(float(slope), abs=1e-8)  # type: ignore[union-attr]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3), InstanceWhitening(6))
        self.second = nn.Sequential(nn.ReLU(), nn.Conv2d(6, 4, 3), InstanceWhitening(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


def test_all_layers_are_observed_over_several_batches() -> None:
    torch.manual_seed(0)
    # In double precision: other batches round differently, and a pair near the limit between two
    # clusters could change sides.
    model, draws = Net().double(), torch.Generator().manual_seed(1)
    whitening = SelectiveWhitening(model).double()
    batches = [tuple(torch.rand(2, n, 3, 9, 9, generator=draws).double()) for n in (3, 2)]
    for x, other in batches:
        whitening.observe(model, x, other)
    counts = whitening.select()
    every, others = (torch.cat(each) for each in zip(*batches, strict=True))
    with torch.no_grad():
        masks = [
            select_pairs(find_variances(part(every), part(others))) for part in (model.first, model)
        ]
    assert counts == [int(mask.sum()) for mask in masks]
    for number, mask in enumerate(masks):
        assert torch.equal(whitening.get_buffer(f"mask{number}"), mask)
    with whitening.watch(model) as taken:
        model(every)
    with torch.no_grad():
        expected = [
            float(whitening_loss(part(every), mask))
            for part, mask in zip((model.first, model), masks, strict=True)
        ]
    assert whitening(taken).item() == pytest.approx(sum(expected) / 2, rel=1e-12)
    assert not model.first[1]._forward_hooks


def test_what_cannot_be_whitened_is_refused() -> None:
    with raises("missing_layers", layers=("InstanceWhitening",)):
        SelectiveWhitening(nn.Conv2d(3, 4, 3))
    with raises("too_few_samples", expected=1, found=0):
        SelectiveWhitening(Net()).select()
