"""Styles of images: the numbers by loops, groups, and what must not split a stream."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch

from acclimate import corruptions
from acclimate.builtin import load_split
from acclimate.functional import styles
from acclimate.functional.styles import (
    MOST,
    N_NUMBERS,
    RADIUS,
    assign_styles,
    describe_styles,
    has_style,
    update_styles,
)


def pictures(n=64, start=0):
    return load_split("test", start + n)[0][start:]


def spoiled(x, name, severity=5):
    if name == "clean":
        return x
    pixels = (x * 255).round().byte().permute(0, 2, 3, 1).numpy()
    found = corruptions.apply(np.ascontiguousarray(pixels), name, severity)
    return torch.from_numpy(found.transpose(0, 3, 1, 2).copy()).float() / 255


# The oracle: loops over pixels -------------------------------------------------------------------


def laplacian(channel):
    """Return the second derivatives of one channel, a list of rows."""
    return [
        channel[i - 1][j] + channel[i + 1][j] + channel[i][j - 1] + channel[i][j + 1]
        - 4 * channel[i][j]
        for i in range(1, len(channel) - 1)
        for j in range(1, len(channel[0]) - 1)
    ]  # fmt: skip


def halve(channel, size):
    return [
        [
            sum(channel[size * i + a][size * j + b] for a in range(size) for b in range(size))
            / size**2
            for j in range(len(channel[0]) // size)
        ]
        for i in range(len(channel) // size)
    ]


def energy(channels):
    values = [value for channel in channels for value in laplacian(channel)]
    return math.log(math.sqrt(sum(v * v for v in values) / len(values)) + styles._EPSILON)


def describe_plainly(image):
    channels = image.tolist()
    fine, coarse, coarsest = (energy([halve(c, size) for c in channels]) for size in (1, 2, 4))
    grey = [
        [sum(c[i][j] for c in channels) / len(channels) for j in range(image.shape[2])]
        for i in range(image.shape[1])
    ]
    colours = [
        [
            [v - g for v, g in zip(row, greys, strict=True)]
            for row, greys in zip(c, grey, strict=True)
        ]
        for c in channels
    ]
    deviations = [statistics.stdev([v for row in c for v in row]) for c in channels]
    numbers = [
        fine - coarse,
        coarse - coarsest,
        energy(colours) - fine,
        math.log(statistics.mean(deviations) + styles._EPSILON),
    ]
    return [number / spread for number, spread in zip(numbers, styles._SPREAD, strict=True)]


@pytest.mark.parametrize("shape", [(3, 3, 16, 16), (2, 1, 17, 22)])
def test_the_numbers_are_those_of_loops(shape):
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    found = describe_styles(x)
    assert found.shape == (len(x), N_NUMBERS)
    expected = torch.tensor([describe_plainly(image) for image in x])
    # One channel has no colour: the logarithm of rounding errors plus the constant.
    columns = [0, 1, 3] if shape[1] == 1 else range(N_NUMBERS)
    for column in columns:
        assert torch.allclose(found[:, column], expected[:, column], rtol=1e-4, atol=1e-4)


def test_the_numbers_are_those_of_the_mirror_image():
    x = pictures(8)
    assert torch.allclose(describe_styles(x), describe_styles(x.flip(-1)), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (torch.zeros(2, 3, 16, 16), True),
        (torch.zeros(2, 3, 15, 16), False),
        (torch.zeros(2, 3), False),
        (torch.zeros(2, 3, 16, 16, dtype=torch.uint8), False),
        ({"images": torch.zeros(2, 3, 16, 16)}, False),
    ],
)
def test_what_has_a_style(x, expected):
    assert has_style(x) == expected


# Groups ------------------------------------------------------------------------------------------


def follow(batches):
    """Return the styles after batches."""
    found = None
    for x in batches:
        found, _ = update_styles(found, describe_styles(x))
    return found


@pytest.mark.parametrize("batch_size", [64, 5, 1])
def test_ordinary_images_have_one_style_or_few(batch_size):
    found = follow(pictures(128).split(batch_size))
    largest = float(found["counts"].max() / found["counts"].sum())
    assert largest > 0.9


@pytest.mark.parametrize(
    "names", [("gaussian_blur", "speckle_noise"), ("jpeg_compression", "gaussian_noise")]
)
@pytest.mark.parametrize("batch_size", [64, 8])
def test_different_corruptions_have_styles_of_their_own(names, batch_size):
    clean, other = (spoiled(pictures(64, 64 * n), name) for n, name in enumerate(names))
    mixed = torch.cat([clean, other])[torch.randperm(128, generator=torch.manual_seed(0))]
    found = follow(mixed.split(batch_size))
    of_clean, of_other = (assign_styles(found, describe_styles(x)) for x in (clean, other))
    usual = of_clean.mode().values
    assert float((of_clean == usual).float().mean()) > 0.8
    assert float((of_other != usual).float().mean()) > 0.8


def test_one_class_has_the_style_of_all():
    x, y = load_split("test", 400)
    found = follow([x[:200]])
    for label in y.unique():
        assert (
            float((assign_styles(found, describe_styles(x[y == label])) == 0).float().mean()) > 0.8
        )


def test_centres_are_means():
    x = pictures(20)
    found = follow([x[:12], x[12:]])
    assert len(found["centres"]) == 1
    described = describe_styles(x)
    share = 0.5 ** (8 / styles._MEMORY)
    weights = torch.tensor([share] * 12 + [1.0] * 8)
    expected = (weights[:, None] * described).sum(0) / weights.sum()
    assert torch.allclose(found["centres"][0], expected, rtol=0, atol=1e-4)
    assert float(found["counts"]) == pytest.approx(12 * share + 8)


def test_the_rarest_style_makes_room():
    far = torch.arange(MOST + 1.0)[:, None] * 3 * RADIUS
    far = torch.cat([far, torch.zeros(MOST + 1, N_NUMBERS - 1)], dim=1)
    found, replaced = None, []
    for number in range(MOST):
        n = 1 if number == 4 else 2
        found, replaced = update_styles(found, far[[number] * n])
        assert replaced == []
    assert len(found["centres"]) == MOST
    before = found["centres"].clone()
    found, replaced = update_styles(found, far[[MOST, MOST]])
    assert replaced == [4]
    assert torch.equal(found["centres"][4], far[MOST])
    others = [number for number in range(MOST) if number != 4]
    assert torch.equal(found["centres"][others], before[others])


def test_images_that_overflow_are_left_out():
    x = pictures(8)
    expected = follow([x])
    huge = torch.cat([x, torch.full_like(x[:1], 3e38) * torch.rand_like(x[:1]).sign()])
    huge[-1, 0, 0, 0] = torch.nan
    found = follow([huge])
    assert torch.equal(found["centres"], expected["centres"])
    assert assign_styles(found, describe_styles(huge)).tolist() == [0] * 9
    nothing = follow([huge[-1:]])
    assert nothing["centres"].isfinite().all()
