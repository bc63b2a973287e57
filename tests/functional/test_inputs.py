"""Checks of batches: every refusal says what was found, every legal input passes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.inputs import Normalization, check_batch, check_image_shape, check_images
from acclimate.functional.normalization import NORMALIZATIONS

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
    ("x", "message"),
    [
        ([[0.5]], r"expected a torch.Tensor, found list; convert it with torch.as_tensor"),
        (0.5, "expected a torch.Tensor, found float"),
        (None, "expected a torch.Tensor, found NoneType"),
        ((torch.rand(2, 3, 4, 4), torch.zeros(2)), "found tuple; give its tensor of inputs alone"),
        (torch.tensor(0.5), "expected a batch, samples first; found a tensor without dimensions"),
        (torch.zeros(0, 3, 4, 4), r"empty batch of shape \(0, 3, 4, 4\); leave empty batches out"),
        (torch.zeros(2, 3, 0, 4), r"empty batch of shape \(2, 3, 0, 4\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.bool), "found bool; give real floating-point values"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.complex64), "found complex64; give real"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.float8_e5m2), "found float8_e5m2; give real"),
    ],
)
def test_what_is_no_batch_is_refused(check: object, x: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check(x)  # type: ignore[operator]


@pytest.mark.parametrize("dtype", INTEGER_TYPES)
def test_integers_are_refused(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    message = rf"floating batch \(float16, .*\), found {name}; .* with x.float\(\) / 255"
    with pytest.raises(BadInput, match=message):
        check_batch(torch.zeros(2, 3, 4, 4, dtype=dtype))


@given(image_shapes, dtypes, st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
@settings(deadline=None, max_examples=60)
def test_values_that_are_not_finite_are_refused(
    shape: tuple[int, ...], dtype: torch.dtype, bad: float, data: st.DataObject
) -> None:
    x = random(shape, dtype)
    samples = data.draw(st.sets(st.integers(0, shape[0] - 1), min_size=1))
    for sample in samples:
        place = [data.draw(st.integers(0, size - 1)) for size in shape[1:]]
        x[sample][tuple(place)] = bad
    message = f"found NaN or infinity in {len(samples)} of {shape[0]} samples"
    for normalization in (None, constants(shape[1])):
        with pytest.raises(BadInput, match=message):
            check_images(x, normalization)
    with pytest.raises(BadInput, match=message):
        check_batch(x)


def test_non_finite_samples_without_further_dimensions_are_counted() -> None:
    with pytest.raises(BadInput, match="in 2 of 3 samples"):
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
        with pytest.raises(BadInput, match="expected samples of shape") as caught:
            check(x, expected[1:])
        assert f"{expected[1:]}, found {shape[1:]} (batch {shape})" in str(caught.value)


# ---- refusals of images


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((4,), r"\(batch, channels, height, width\), found 1 dimensions: \(4,\)\.$"),
        ((3, 8, 8), r"found 3 dimensions: \(3, 8, 8\)\. For a single image give x.unsqueeze\(0\)"),
        ((2, 2, 3, 8, 8), "found 5 dimensions"),
        ((2, 4, 8, 8), r"images of 1 or 3 channels, found 4 \(shape \(2, 4, 8, 8\)\)\.$"),
        ((2, 8, 8, 3), r"found 8 .* Channels seem to come last: give x.permute\(0, 3, 1, 2\)"),
    ],
)
def test_other_shapes_are_refused(shape: tuple[int, ...], message: str) -> None:
    for check in (check_image_shape, lambda x: check_images(x, None)):
        with pytest.raises(BadInput, match=message):
            check(torch.rand(shape))


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize(
    ("low", "high", "advice"),
    [
        (0, 255, "look like 0 to 255: divide by 255"),
        (0, 3, "look like 0 to 255: divide by 255"),
        (-0.125, 255, "look like 0 to 255: divide by 255"),
        (-2.125, 2.625, r"look normalised: pass normalization=\(mean, std\)"),
        (-1, 1, r"look normalised: pass normalization=\(mean, std\)"),
        (-0.0625, 1.0625, r"use x.clamp\(0, 1\); if they are normalised, pass normalization="),
        (0, 1.0625, r"use x.clamp\(0, 1\)"),
        (-0.0625, 1, r"use x.clamp\(0, 1\)"),
        (0, 1.25, r"use x.clamp\(0, 1\)"),
        (-100, 100, "no image in any usual scale"),
        (0, 4096, "no image in any usual scale"),
    ],
)
def test_other_ranges_are_refused(low: float, high: float, advice: str, dtype: torch.dtype) -> None:
    x = random((3, 3, 4, 4), dtype)
    x[1, 2, 0, 0], x[2, 0, 3, 3] = low, high
    message = f"expected pixels in .0, 1., found values from {low:.4g} to {high:.4g}. .*{advice}"
    with pytest.raises(BadInput, match=message):
        check_images(x, None)


@given(image_shapes, dtypes, st.floats(0.05, 100), st.booleans(), st.data())
@settings(deadline=None, max_examples=50)
def test_a_single_pixel_out_of_range_is_found(
    shape: tuple[int, ...], dtype: torch.dtype, excess: float, above: bool, data: st.DataObject
) -> None:
    x = random(shape, dtype)
    place = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    x[place] = 1 + excess if above else -excess
    with pytest.raises(BadInput, match="expected pixels in"):
        check_images(x, None)
    normalization = constants(shape[1], 0.3, 0.2)
    with pytest.raises(BadInput, match="once the normalization is undone"):
        check_images(normalization.normalize(x), normalization)


def test_channels_are_judged_by_their_own_constants() -> None:
    normalization = Normalization((0.0, 0.5, 0.9), (1.0, 0.5, 0.1))
    x = normalization.normalize(random((2, 3, 4, 4), torch.float32))
    check_images(x, normalization)
    with pytest.raises(BadInput, match="Pass as normalization the mean and std that made these"):
        check_images(x.flip(1), normalization)


def test_eight_bit_images_with_a_normalization_are_recognised() -> None:
    x = random((2, 3, 4, 4), torch.float32) * 255
    with pytest.raises(BadInput, match="look like 0 to 255: divide by 255, then normalise"):
        check_images(x, NORMALIZATIONS["imagenet"])


def test_a_normalization_for_other_channels_is_refused() -> None:
    x = random((2, 1, 4, 4), torch.float32)
    message = r"has 3 channels, found 1 in images of shape \(2, 1, 4, 4\)"
    for use in (
        lambda: check_images(x, NORMALIZATIONS["imagenet"]),
        lambda: NORMALIZATIONS["imagenet"].normalize(x),
        lambda: NORMALIZATIONS["imagenet"].denormalize(x),
    ):
        with pytest.raises(BadInput, match=message):
            use()
