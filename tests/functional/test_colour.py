"""Batched colour operations against torchvision, image by image, and against `colorsys`."""

from __future__ import annotations

import colorsys

import pytest
import torch
from torch import Tensor

from acclimate.functional.image_ops import COLOURS, apply_colours, grayscale, hue_, invert
from acclimate.functional.views import ColorJitter
from tests.torchvision_compat import v2

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
TORCHVISION = (
    v2.functional.adjust_brightness,
    v2.functional.adjust_contrast,
    v2.functional.adjust_saturation,
    v2.functional.adjust_hue,
)
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}
# One image each of what makes hues ambiguous, then random ones.
N_IMAGES = 60


def images(channels: int, dtype: torch.dtype, size: tuple[int, int] = (7, 9)) -> Tensor:
    """Return black, white, grey, two equal channels, 8-bit levels, few levels, and random ones."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(N_IMAGES, channels, *size, generator=generator, dtype=dtype)
    x[0], x[1], x[2] = 0, 1, x[2, :1]
    if channels == 3:
        x[3, 0], x[4, 1], x[5, 2] = x[3, 1], x[4, 2], x[5, 0]
    x[6:20] = (x[6:20] * 255).round() / 255
    x[20:30] = (x[20:30] * 3).round() / 3
    return x


def decisions(jitter: ColorJitter, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return jitter.decide(jitter.uniforms(n, torch.Generator().manual_seed(seed)))


def hue_oracle(x: Tensor, shift: float) -> Tensor:
    """Turn the hue of one float64 image pixel by pixel with the standard library."""
    pixels = []
    for red, green, blue in x.flatten(1).T.tolist():
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        pixels.append(colorsys.hsv_to_rgb((hue + shift) % 1.0, saturation, value))
    return torch.tensor(pixels, dtype=torch.float64).T.reshape(x.shape)


# torchvision turns hues in float32 only; for float64 see the test with colorsys.
@pytest.mark.parametrize(
    ("column", "dtype"),
    [(column, torch.float32) for column in range(4)]
    + [(column, torch.float64) for column in (BRIGHTNESS, CONTRAST, SATURATION)],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_each_operation_equals_torchvision(column: int, channels: int, dtype: torch.dtype) -> None:
    x = images(channels, dtype)
    factors, order = decisions(ColorJitter(1.0, 1.0, 1.0, 0.5), N_IMAGES)
    neutral = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64).repeat(N_IMAGES, 1)
    neutral[:, column] = factors[:, column]
    result = apply_colours(x, neutral, order)
    for i in range(N_IMAGES):
        expected = TORCHVISION[column](x[i], factors[i, column].item())
        torch.testing.assert_close(result[i], expected, rtol=0, atol=TOLERANCE[dtype])


def test_hue_in_float64_equals_the_standard_library() -> None:
    x = images(3, torch.float64)
    shifts = decisions(ColorJitter(hue=0.5), N_IMAGES)[0][:, HUE]
    result = hue_(x.clone(), shifts.view(-1, 1, 1, 1))
    for i in range(N_IMAGES):
        expected = hue_oracle(x[i], shifts[i].item())
        torch.testing.assert_close(result[i], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("shift", [-0.5, -1 / 3, -1e-9, 0.0, 1 / 6, 0.5])
def test_hue_at_the_borders_of_the_circle(shift: float) -> None:
    levels = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    x = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 3, 9)
    result = hue_(x.clone(), torch.tensor(shift, dtype=torch.float64).view(1, 1, 1, 1))
    torch.testing.assert_close(result[0], hue_oracle(x[0], shift), rtol=0, atol=1e-10)


@pytest.mark.parametrize("channels", [1, 3])
def test_chains_in_float64_equal_torchvision(channels: int) -> None:
    x = images(channels, torch.float64)
    factors, order = decisions(ColorJitter(), N_IMAGES)
    result = apply_colours(x, factors, order)
    for i in range(N_IMAGES):
        expected = x[i]
        for column in order[i].tolist():
            factor = factors[i, column].item()
            if column != HUE:
                expected = TORCHVISION[column](expected, factor)
            elif channels == 3:
                expected = hue_oracle(expected, factor)
        torch.testing.assert_close(result[i], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("hue", [0.0, 0.2])
def test_chains_in_float32_equal_torchvision(hue: float) -> None:
    """Compare whole chains; what follows the hue may enlarge the hue's own rounding.

    What precedes the hue may differ by an ulp, 6e-8, since means are summed in another order. That
    may tip a hue, which has steps of 1.2e-7 of a turn in float32 (7e-7 of the colour range), when
    it is found and again when it is turned, and it moves the colour itself by up to six ulps:
    1.8e-6 together. An operation with factor f multiplies a difference by f + |1 − f| at most.
    """
    x = images(3, torch.float32)
    factors, order = decisions(ColorJitter(hue=hue), N_IMAGES, seed=1)
    result = apply_colours(x, factors, order)
    for i in range(N_IMAGES):
        expected, tolerance = x[i], 2e-6 if hue else 1e-6
        after_hue = False
        for column in order[i].tolist():
            factor = factors[i, column].item()
            expected = TORCHVISION[column](expected, factor) if column != HUE or hue else expected
            if after_hue:
                tolerance *= factor + abs(1 - factor)
            after_hue = after_hue or (column == HUE and hue > 0)
        torch.testing.assert_close(result[i], expected, rtol=0, atol=tolerance)


def test_a_batch_equals_its_samples_one_by_one() -> None:
    x = images(3, torch.float32)
    factors, order = decisions(ColorJitter(), N_IMAGES)
    result = apply_colours(x, factors, order)
    for i in range(N_IMAGES):
        expected = x[i : i + 1].clone()
        for column in order[i].tolist():
            COLOURS[column](expected, factors[i, column].float().view(1, 1, 1, 1))
        torch.testing.assert_close(result[i : i + 1], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 3])
def test_grayscale_and_invert_equal_torchvision(channels: int, dtype: torch.dtype) -> None:
    x = images(channels, dtype)
    gray = v2.functional.rgb_to_grayscale(x, num_output_channels=channels)
    torch.testing.assert_close(grayscale(x), gray, rtol=0, atol=TOLERANCE[dtype])
    torch.testing.assert_close(invert(x), v2.functional.invert(x), rtol=0, atol=TOLERANCE[dtype])


def test_the_input_is_not_changed_and_images_stay_in_range() -> None:
    x = images(3, torch.float32)
    before = x.clone()
    result = apply_colours(x, *decisions(ColorJitter(2.0, 2.0, 2.0, 0.5), N_IMAGES))
    assert torch.equal(x, before)
    assert result.min() >= 0
    assert result.max() <= 1
    assert not torch.equal(result, before)


def test_neutral_factors_change_no_bit() -> None:
    x = images(3, torch.float32)
    assert torch.equal(apply_colours(x, *decisions(ColorJitter(0, 0, 0, 0), N_IMAGES)), x)


def test_one_channel_has_neither_saturation_nor_hue() -> None:
    x = images(1, torch.float32)
    assert torch.equal(apply_colours(x, *decisions(ColorJitter(0, 0, 0.8, 0.2), N_IMAGES)), x)


def test_an_empty_batch_stays_empty() -> None:
    x = torch.zeros(0, 3, 4, 4)
    assert apply_colours(x, *decisions(ColorJitter(), 0)).shape == x.shape
