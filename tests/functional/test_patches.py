"""Images with their patches in another order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.functional.image_ops import shuffle_patches
from tests.reference import oracles_selective as oracles
from tests.torchvision_compat import v2


def orders_from(seed):
    generator = torch.Generator().manual_seed(seed)
    return lambda n: torch.rand(n, 16, generator=generator).argsort(dim=1)


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
