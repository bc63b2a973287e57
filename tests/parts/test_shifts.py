"""Shifts of source images: each alteration by loops over pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest

from acclimate import corruptions
from acclimate.parts.shifts import ALTERATIONS, shift_images


def images(n=3, height=12, width=10, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def clip(value):
    return min(max(value, 0.0), 1.0)


def posterize(image, place, share):
    steps = {0.2: 15, 0.6: 7, 1.0: 3}[share]
    return round(image[place] * steps) / steps


def solarize(image, place, share):
    value = image[place]
    return 1 - value if value > 1 - 0.55 * share else value


def tint(image, place, share):
    return image[place] * (1 + share * (0.5, -0.3, -0.6)[place[2]])


def sharpen(image, place, share):
    row, column, channel = place
    height, width = image.shape[:2]
    around = [
        image[min(max(row + i, 0), height - 1), min(max(column + j, 0), width - 1), channel]
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
    ]
    return image[place] + 5 * share * (image[place] - sum(around) / 9)


BY_PIXEL = {"posterize": posterize, "solarize": solarize, "tint": tint, "sharpen": sharpen}


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", BY_PIXEL)
def test_pixels_are_those_of_loops(name, severity):
    before = images()
    found = shift_images(before, name, severity)
    assert found.shape == before.shape
    assert found.dtype == np.uint8
    for image, altered in zip(before.astype(np.float64) / 255, found, strict=True):
        for place in np.ndindex(*image.shape):
            expected = 255 * clip(BY_PIXEL[name](image, place, severity / 5))
            # Half a step between two shades may be rounded either way.
            assert abs(float(altered[place]) - expected) <= 0.5 + 1e-3, place


def test_a_square_is_hidden():
    before = images(40)
    found = shift_images(before, "occlude", 5)
    places = set()
    for image, altered in zip(before, found, strict=True):
        rows, columns = np.nonzero((altered == 128).all(axis=2))
        top, left = rows.min(), columns.min()
        places.add((top, left))
        square = np.zeros(image.shape[:2], dtype=bool)
        square[top : top + 5, left : left + 5] = True
        assert (altered[square] == 128).all()
        assert np.array_equal(altered[~square], image[~square])
    assert len(places) > 10


def test_images_are_turned_to_both_sides():
    """A bright point moves along a circle around the centre."""
    side, radius = 41, 12
    before = np.zeros((2, side, side, 3), dtype=np.uint8)
    middle = side // 2
    before[:, middle - 1 : middle + 2, middle + radius - 1 : middle + radius + 2] = 255
    found = shift_images(before, "rotate", 5).astype(np.float64).sum(axis=3)
    angles = []
    for image in found:
        rows, columns = np.indices(image.shape)
        row = (rows * image).sum() / image.sum() - middle
        column = (columns * image).sum() / image.sum() - middle
        assert math.hypot(row, column) == pytest.approx(radius, abs=0.1)
        angles.append(math.degrees(math.atan2(row, column)))
    assert sorted(angles) == pytest.approx([-35, 35], abs=0.5)


def test_several_shifts_follow_one_another():
    before = images()
    one_by_one = corruptions.apply(shift_images(before, "tint", 5), "saturate", 5, scale=True)
    assert np.array_equal(shift_images(before, "tint+saturate", 5), one_by_one)


def test_every_image_of_a_mixture_has_one_of_its_shifts():
    before = images(8)
    found = shift_images(before, "tint/clean/saturate+posterize", 5)
    tinted, both = (shift_images(before, name, 5) for name in ("tint", "saturate+posterize"))
    for number, image in enumerate(found):
        expected = (tinted, before, both)[number % 3][number]
        assert np.array_equal(image, expected)
    assert np.array_equal(before, images(8))


@pytest.mark.parametrize("name", ["clean", *ALTERATIONS])
def test_only_clean_images_stay_as_they_are(name):
    before = images()
    assert np.array_equal(shift_images(before, name, 5), before) == (name == "clean")


def test_names_are_not_those_of_corruptions():
    assert not set(ALTERATIONS) & set(corruptions.HELD_OUT + corruptions.BENCHMARK)
