"""DeYO against a plain version, and the shuffling of patches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import acclimate
from acclimate.functional.entropy import entropy
from acclimate.methods.deyo import shuffle_patches
from tests.reference import oracles_selective as oracles
from tests.reference.selective_models import EXACT, MODELS, close, is_norm, run, sharp_model, stream
from tests.torchvision_door import v2


def orders_from(seed):
    generator = torch.Generator().manual_seed(seed)
    return lambda n: torch.rand(n, 16, generator=generator).argsort(dim=1)


@pytest.mark.parametrize("sgd", [False, True])
@pytest.mark.parametrize(("dtype", "n", "tolerance"), EXACT)
@pytest.mark.parametrize("name", MODELS)
def test_deyo(name, dtype, n, tolerance, sgd):
    model, xs, log = sharp_model(name, dtype), stream(dtype, n), []
    options = {"max_entropy": 0.8, "min_drop": 0.02, "lr": 1e-2}
    expected = list(oracles.deyo(model, xs, is_norm, orders_from(5), **options, sgd=sgd, log=log))
    optimizer = "sgd" if sgd else "adam"
    adapted = acclimate.adapt(model, "deyo", **options, optimizer=optimizer, seed=5)
    assert close(run(adapted, xs), expected, tolerance)
    sure, chosen = (sum(column) for column in zip(*log, strict=True))
    assert 0 < chosen < sure < n * 16


def test_deyo_normalises_a_single_sure_sample_with_the_source_s_statistics():
    model = sharp_model("batch_norm")
    x = stream(n=1)[0]
    entropies = entropy(oracles.batch_mode(model)(x).detach()).sort().values
    limit = float(entropies[:2].mean()) / math.log(4)
    options = {"max_entropy": limit, "min_drop": -1.0, "lr": 1e-2}
    log, orders = [], orders_from(0)
    # Adam would hide the weight of a lone sample, which is all that its second pass decides.
    expected = list(oracles.deyo(model, [x, x], is_norm, orders, **options, sgd=True, log=log))
    assert log[0] == (1, 1)
    adapted = acclimate.adapt(model, "deyo", **options, optimizer="sgd")
    assert close(run(adapted, [x, x]), expected, 1e-8)


def test_deyo_takes_single_samples_where_no_batch_is_needed():
    adapted = acclimate.adapt(sharp_model("vit"), "deyo", max_entropy=1.5, min_drop=-1.0)
    run(adapted, [x[:1] for x in stream()])
    assert adapted.counts.updates == 5


@pytest.mark.parametrize("size", [(8, 8), (4, 4), (16, 12)])
def test_patches_are_moved_whole(size):
    x = torch.rand(3, 2, *size)
    orders = orders_from(9)(3)
    expected = [
        oracles.shuffle_one(image, order, 4) for image, order in zip(x, orders, strict=True)
    ]
    found = shuffle_patches(x, 4, torch.Generator().manual_seed(9))
    assert torch.equal(found, torch.stack(expected))
    assert not torch.equal(orders[0], orders[1])  # each image has an order of its own


@pytest.mark.parametrize("size", [(9, 7), (5, 32), (3, 2), (1, 1), (4, 3), (33, 33)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_odd_sizes_keep_their_shape_and_range(size, dtype):
    x = torch.rand(4, 3, *size, generator=torch.Generator().manual_seed(0))
    x = x.to(getattr(torch, dtype))
    found = shuffle_patches(x, 4, torch.Generator().manual_seed(1))
    assert found.shape == x.shape
    assert found.dtype == x.dtype
    assert x.min() <= found.min()
    assert found.max() <= x.max()


def test_odd_sizes_are_scaled_as_torchvision_does():
    x = torch.rand(2, 3, 33, 18, dtype=torch.float64)
    small = v2.functional.resize(x, [32, 16], antialias=True)
    orders = orders_from(2)(2)
    mixed = torch.stack(
        [oracles.shuffle_one(image, order, 4) for image, order in zip(small, orders, strict=True)]
    )
    expected = v2.functional.resize(mixed, [33, 18], antialias=True)
    found = shuffle_patches(x, 4, torch.Generator().manual_seed(2))
    assert torch.allclose(found, expected, atol=1e-12)


@given(height=st.integers(1, 20), width=st.integers(1, 20), n=st.integers(1, 6))
@settings(deadline=None, max_examples=40)
def test_a_constant_image_stays_constant(height, width, n):
    x = torch.full((2, 3, height, width), 0.25)
    found = shuffle_patches(x, n, torch.Generator().manual_seed(0))
    assert torch.allclose(found, x, atol=1e-6)


@given(height=st.integers(1, 5), width=st.integers(1, 5), n=st.integers(1, 6))
@settings(deadline=None, max_examples=40)
def test_shuffling_keeps_the_pixels(height, width, n):
    x = torch.rand(2, 3, height * n, width * n, generator=torch.Generator().manual_seed(0))
    found = shuffle_patches(x, n, torch.Generator().manual_seed(height))
    assert torch.equal(found.flatten(2).sort().values, x.flatten(2).sort().values)
