"""Checks of batches: every refusal tells what was found, every legal input passes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.inputs import (
    NORMALIZATIONS,
    Normalization,
    all_finite,
    check_batch,
    check_device,
    check_dtype,
    check_image_shape,
    check_images,
)
from tests.codes import raises

FLOAT_TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGER_TYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
dtypes = st.sampled_from(FLOAT_TYPES)
seeds = st.integers(0, 1000)
image_shapes = st.tuples(
    st.integers(1, 4), st.sampled_from([1, 3]), st.integers(1, 6), st.integers(1, 6)
)
any_shapes = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)
steps = st.floats(0.05, 1.0)


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def constants(channels: int, mean: float = 0.5, std: float = 0.25) -> Normalization:
    return Normalization((mean,) * channels, (std,) * channels)


# ---- legal inputs


@given(any_shapes, dtypes, seeds, st.floats(-1e4, 1e4))
@settings(deadline=None, max_examples=50)
def test_any_finite_floating_batch_passes(
    shape: tuple[int, ...], dtype: torch.dtype, seed: int, offset: float
) -> None:
    x = random(shape, dtype, seed) + offset
    check_batch(x)
    check_batch(x, like_shape=shape[1:])


@given(image_shapes, dtypes, seeds)
@settings(deadline=None, max_examples=50)
def test_images_in_range_pass(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> None:
    x = random(shape, dtype, seed)
    check_image_shape(x)
    check_images(x, None)
    check_images(x, None, like_shape=shape[1:])
    check_images(x.to(memory_format=torch.channels_last), None)
    check_images(x.requires_grad_(), None)


@given(image_shapes, dtypes, seeds, steps, st.sampled_from([*NORMALIZATIONS, None]))
@settings(deadline=None, max_examples=80)
def test_normalised_images_pass(
    shape: tuple[int, ...], dtype: torch.dtype, seed: int, std: float, name: str | None
) -> None:
    normalization = NORMALIZATIONS[name] if name else constants(shape[1], 0.4, std)
    x = random((shape[0], len(normalization.mean), *shape[2:]), dtype, seed)
    # Black and white are the ends of the range, where rounding shows.
    x[0, :, 0, 0] = float(seed % 2)
    check_images(normalization.normalize(x), normalization)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0, 1 + 5e-4, -5e-4])
@pytest.mark.parametrize("dtype", FLOAT_TYPES)
def test_an_image_of_one_colour_passes(value: float, dtype: torch.dtype) -> None:
    x = torch.full((1, 3, 4, 4), value).to(dtype)
    check_images(x, None)
    check_images(NORMALIZATIONS["imagenet"].normalize(x), NORMALIZATIONS["imagenet"])


# ---- refusals of any batch


@pytest.mark.parametrize("check", [check_batch, lambda x: check_images(x, None)])
@pytest.mark.parametrize(
    ("x", "code", "data"),
    [
        ([[0.5]], "wrong_type", {"option": "x", "found": "list"}),
        (0.5, "wrong_type", {"option": "x", "found": "float"}),
        (None, "wrong_type", {"option": "x", "found": "NoneType"}),
        ((torch.rand(2, 3, 4, 4), torch.zeros(2)), "wrong_type", {"option": "x", "found": "tuple"}),
        (torch.tensor(0.5), "wrong_shape", {"found": ()}),
        (torch.zeros(0, 3, 4, 4), "empty_batch", {}),
        (torch.zeros(2, 3, 0, 4), "empty_batch", {}),
        (torch.zeros(2, 3, 4, 4, dtype=torch.bool), "wrong_dtype", {"found": "bool"}),
        (torch.zeros(2, 3, 4, 4, dtype=torch.complex64), "wrong_dtype", {"found": "complex64"}),
        (torch.zeros(2, 3, 4, 4, dtype=torch.float8_e5m2), "wrong_dtype", {"found": "float8_e5m2"}),
    ],
)
def test_what_is_no_batch_is_refused(
    check: object, x: object, code: str, data: dict[str, object]
) -> None:
    with raises(code, BadInput, **data):
        check(x)  # type: ignore[operator]


@pytest.mark.parametrize("dtype", INTEGER_TYPES)
def test_integers_are_refused(dtype: torch.dtype) -> None:
    with raises("wrong_dtype", found=str(dtype).removeprefix("torch.")):
        check_batch(torch.zeros(2, 3, 4, 4, dtype=dtype))


@given(image_shapes, dtypes, st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
@settings(deadline=None, max_examples=40)
def test_values_that_are_not_finite_are_refused(
    shape: tuple[int, ...], dtype: torch.dtype, bad: float, data: st.DataObject
) -> None:
    x = random(shape, dtype)
    samples = data.draw(st.sets(st.integers(0, shape[0] - 1), min_size=1))
    for sample in samples:
        place = [data.draw(st.integers(0, size - 1)) for size in shape[1:]]
        x[sample][tuple(place)] = bad
    for normalization in (None, constants(shape[1])):
        with raises("not_finite", found=tuple(sorted(samples))):
            check_images(x, normalization)
    with raises("not_finite", found=tuple(sorted(samples))):
        check_batch(x)


def test_non_finite_samples_without_further_dimensions_are_counted() -> None:
    with raises("not_finite", found=(1, 2)):
        check_batch(torch.tensor([1.0, math.nan, math.inf]))


@given(image_shapes, image_shapes)
@settings(deadline=None, max_examples=40)
def test_samples_of_another_shape_are_refused(
    shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    x = random(shape, torch.float32)
    if shape[1:] == expected[1:]:
        check_batch(x, expected[1:])
        return
    for check in (check_batch, lambda x, like: check_images(x, None, like)):
        with raises("wrong_shape", found=shape):
            check(x, expected[1:])


# ---- refusals of images


@pytest.mark.parametrize("shape", [(4,), (3, 8, 8), (2, 2, 3, 8, 8), (2, 4, 8, 8), (2, 8, 8, 3)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    for check in (check_image_shape, lambda x: check_images(x, None)):
        with raises("wrong_shape", found=shape):
            check(torch.rand(shape))


RANGES = {
    (0, 255): "divide by 255",
    (0, 3): "divide by 255",
    (-0.125, 255): "divide by 255",
    (-2.125, 2.625): "normalization=(mean, std)",
    (-1, 1): "normalization=(mean, std)",
    (-0.0625, 1.0625): "x.clamp(0, 1)",
    (0, 1.0625): "x.clamp(0, 1)",
    (-0.0625, 1): "x.clamp(0, 1)",
    (0, 1.25): "x.clamp(0, 1)",
    (-100, 100): "the code that prepares the batch",
    (0, 4096): "the code that prepares the batch",
}


def in_range(low: float, high: float, dtype: torch.dtype = torch.float32) -> Tensor:
    x = random((3, 3, 4, 4), dtype)
    x[1, 2, 0, 0], x[2, 0, 3, 3] = low, high
    return x


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_other_ranges_are_refused(low: float, high: float, dtype: torch.dtype) -> None:
    with raises("pixel_range", low=low, high=high):
        check_images(in_range(low, high, dtype), None)


@pytest.mark.parametrize(
    ("x", "normalization", "advice"),
    [
        ([[0.5]], None, "torch.as_tensor"),
        ((torch.rand(2, 3, 4, 4), torch.zeros(2)), None, "only its tensor of inputs"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), None, "x.float() / 255"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.bool), None, "for example float32"),
        (torch.rand(3, 8, 8), None, "x.unsqueeze(0)"),
        (torch.rand(2, 8, 8, 3), None, "x.permute(0, 3, 1, 2)"),
        *((in_range(*ends), None, advice) for ends, advice in RANGES.items()),
        (255 * torch.rand(2, 3, 4, 4), "imagenet", "divide by 255, then normalise"),
        (
            -30 * torch.rand(2, 3, 4, 4),
            "imagenet",
            "the mean and std that these images were normalised with",
        ),
    ],
)
def test_the_message_says_what_to_do(x: Tensor, normalization: str | None, advice: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_images(x, Normalization.of(normalization))
    every = {"torch.as_tensor", "x.float() / 255", "x.unsqueeze(0)", "x.permute", *RANGES.values()}
    others = {other for other in every if other not in advice and advice not in other}
    # Images that a resampling overshot may be normalised ones of low contrast: both are named.
    others -= {"normalization=(mean, std)"} if advice == "x.clamp(0, 1)" else set()
    assert advice in str(caught.value)
    assert not [other for other in others if other in str(caught.value)]


@given(image_shapes, dtypes, st.floats(0.05, 100), st.booleans(), st.data())
@settings(deadline=None, max_examples=50)
def test_a_single_pixel_out_of_range_is_found(
    shape: tuple[int, ...], dtype: torch.dtype, excess: float, above: bool, data: st.DataObject
) -> None:
    x = random(shape, dtype)
    place = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    x[place] = 1 + excess if above else -excess
    low, high = x.min().item(), x.max().item()
    with raises("pixel_range", low=low, high=high):
        check_images(x, None)
    normalization = constants(shape[1], 0.3, 0.2)
    # The range is that of the pixels, but for five roundings on the way there and back.
    bounds = {"rel": 4 * torch.finfo(dtype).eps, "abs": 4 * torch.finfo(dtype).eps}
    ends = {"low": pytest.approx(low, **bounds), "high": pytest.approx(high, **bounds)}
    with raises("pixel_range", **ends):
        check_images(normalization.normalize(x), normalization)


def test_channels_are_judged_by_their_own_constants() -> None:
    normalization = Normalization((0.0, 0.5, 0.9), (1.0, 0.5, 0.1))
    x = normalization.normalize(random((2, 3, 4, 4), torch.float32))
    check_images(x, normalization)
    with raises("pixel_range", low=lambda low: low < -1, high=lambda high: high <= 1):
        check_images(x.flip(1), normalization)


def test_eight_bit_images_with_a_normalization_are_refused() -> None:
    x = random((2, 3, 4, 4), torch.float32) * 255
    with raises("pixel_range", low=lambda low: low > 0, high=lambda high: high > 50):
        check_images(x, NORMALIZATIONS["imagenet"])


def test_a_normalization_for_other_channels_is_refused() -> None:
    x = random((2, 1, 4, 4), torch.float32)
    for use in (
        lambda: check_images(x, NORMALIZATIONS["imagenet"]),
        lambda: NORMALIZATIONS["imagenet"].normalize(x),
        lambda: NORMALIZATIONS["imagenet"].denormalize(x),
    ):
        with raises("count_mismatch", BadInput, expected=3, found=1):
            use()


# ---- device, type and values


def test_a_batch_on_another_device_than_the_model_is_refused() -> None:
    x = torch.rand(2, 3)
    check_device(x, x)
    check_device("not a tensor", x)  # refused by another check
    with raises("wrong_device", expected="meta", found="cpu"):
        check_device(x, x.to("meta"))


def test_a_batch_of_another_type_than_the_model_is_refused_without_autocast() -> None:
    x = torch.rand(2, 3)
    check_dtype(x, x)
    with raises("wrong_dtype", found="float32"):
        check_dtype(x, x.double())
    with torch.autocast("cpu", torch.bfloat16):
        check_dtype(x, x.bfloat16())


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
def test_all_finite_finds_one_bad_value(dtype: torch.dtype) -> None:
    largest = torch.full((3, 2), torch.finfo(dtype).max, dtype=dtype)
    assert all_finite([])
    assert all_finite([largest, torch.empty(0), torch.zeros((), dtype=torch.float64)])
    for bad in (math.nan, math.inf, -math.inf):
        assert not all_finite([largest, torch.tensor([0.0, bad], dtype=dtype)])
