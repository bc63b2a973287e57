"""Batched blur and crops against torchvision, image by image."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from acclimate.functional.image_ops import crop_boxes, gaussian_blur, resized_crop
from acclimate.functional.views import Crop
from tests.codes import raises
from tests.torchvision_compat import v2

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}


def images(n: int, channels: int, height: int, width: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, channels, height, width, generator=generator, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("kernel", "height", "width"), [(1, 4, 5), (3, 2, 9), (3, 32, 32), (7, 12, 5)]
)
def test_blur_equals_torchvision(
    kernel: int, height: int, width: int, channels: int, dtype: torch.dtype
) -> None:
    x = images(9, channels, height, width, dtype)
    sigmas = torch.linspace(0.1, 3.0, 9, dtype=torch.float64)
    result = gaussian_blur(x, kernel, sigmas)
    # A sum of n products with weights of sum 1 is off by n half-steps of the type at most, in any
    # order. The weights are off by 2 k + 3 along either side: k exponentials of rounded numbers (by
    # one each, since x exp(−x) < 0.4), their sum (k), exponential and quotient (3). All that twice.
    rounding = 2 * (kernel**2 + 4 * kernel + 6) * torch.finfo(dtype).eps / 2
    for i, sigma in enumerate(sigmas.tolist()):
        expected = v2.functional.gaussian_blur(x[i], [kernel, kernel], [sigma, sigma])
        torch.testing.assert_close(result[i], expected, rtol=0, atol=rounding)


def test_blur_keeps_a_constant_image_in_range() -> None:
    x = torch.ones(50, 3, 8, 8)
    result = gaussian_blur(x, 3, torch.linspace(0.1, 5, 50))
    assert result.max() <= 1
    torch.testing.assert_close(result, x, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("kernel", "height", "width"), [(3, 1, 8), (5, 8, 2)])
def test_blur_refuses_images_smaller_than_its_border(kernel: int, height: int, width: int) -> None:
    with raises("image_too_small", found=(height, width)):
        gaussian_blur(torch.rand(2, 3, height, width), kernel, torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (5, 19), (1, 1), (224, 224)])
def test_crop_equals_torchvision(
    height: int, width: int, channels: int, dtype: torch.dtype
) -> None:
    n = 4 if height == 224 else 40
    x = images(n, channels, height, width, dtype)
    crop = Crop(scale=(0.05, 1.0), ratio=(0.4, 2.5))
    boxes = crop.decide(crop.uniforms(n, torch.Generator().manual_seed(1)), height, width)
    result = resized_crop(x, boxes)
    for i, box in enumerate(boxes.tolist()):
        expected = v2.functional.resized_crop(x[i], *box, [height, width], antialias=True)
        torch.testing.assert_close(result[i], expected, rtol=0, atol=TOLERANCE[dtype])


def test_a_box_of_the_whole_image_changes_no_bit() -> None:
    x = images(3, 3, 17, 23, torch.float32)
    assert torch.equal(resized_crop(x, torch.tensor([[0, 0, 17, 23]] * 3)), x)


def box_oracle(
    row: list[float],
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> list[int]:
    """Choose one box by the rule of torchvision's RandomResizedCrop, given its random numbers.

    The last resort is at least one pixel wide and high, which torchvision does not see to.
    """
    for area_number, ratio_number in zip(row[:10], row[10:20], strict=True):
        area = height * width * (scale[0] + area_number * (scale[1] - scale[0]))
        low, high = math.log(ratio[0]), math.log(ratio[1])
        aspect = math.exp(low + ratio_number * (high - low))
        box_width, box_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = math.floor(row[20] * (height - box_height + 1))
            left = math.floor(row[21] * (width - box_width + 1))
            return [top, left, box_height, box_width]
    box_height, box_width = height, width
    if width / height < ratio[0]:
        box_height = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        box_width = max(1, round(height * ratio[1]))
    return [(height - box_height) // 2, (width - box_width) // 2, box_height, box_width]


@given(
    height=st.integers(1, 60),
    width=st.integers(1, 60),
    scale=st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)).map(lambda pair: tuple(sorted(pair))),
    ratio=st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (0.2, 0.5), (2.0, 3.0)]),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=60)
def test_boxes_follow_the_rule_of_torchvision(
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    seed: int,
) -> None:
    uniforms = Crop().uniforms(12, torch.Generator().manual_seed(seed))
    boxes = crop_boxes(uniforms, height, width, scale, ratio)
    expected = [box_oracle(row, height, width, scale, ratio) for row in uniforms.tolist()]
    assert boxes.tolist() == expected
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= torch.tensor([height, width])).all()


def test_boxes_reach_every_place() -> None:
    crop = Crop(scale=(0.25, 0.25), ratio=(1.0, 1.0))
    boxes = crop.decide(crop.uniforms(2000, torch.Generator().manual_seed(0)), 8, 8)
    counts = torch.bincount(boxes[:, 0] * 5 + boxes[:, 1], minlength=25).double()
    assert (boxes[:, 2:] == 4).all()
    # Chi-square with 24 degrees of freedom: 51.2 is exceeded once in 1000 cases.
    assert ((counts - 80) ** 2 / 80).sum() < 51.2
