"""Random views: draws, sets, types and layouts; whole sets against torchvision, image by image."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from acclimate.functional.inputs import Normalization
from acclimate.functional.views import (
    VIEW_SETS,
    Blur,
    ColorJitter,
    Crop,
    Flip,
    Grayscale,
    Invert,
    OneOf,
    View,
    Views,
    apply_views,
    get_views,
)
from tests.codes import raises
from tests.functional.test_colour import HUE, TORCHVISION, hue_oracle
from tests.torchvision_compat import v2

N_DRAWS = 12_000
# Values that chi-square exceeds once in 1000 cases, by degrees of freedom.
CHI_SQUARE = {1: 10.83, 2: 13.82, 9: 27.88, 23: 49.73}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(
    n: int = 24, channels: int = 3, size: int = 10, dtype: torch.dtype = torch.float32
) -> Tensor:
    return torch.rand(n, channels, size, size, generator=seeded(99), dtype=dtype)


def oracle(view: View, image: Tensor, row: Tensor) -> Tensor:
    """Apply one view to one float64 image by way of torchvision, given its random numbers."""
    numbers = row.unsqueeze(0)
    if isinstance(view, ColorJitter):
        factors, order = view.decide(numbers)
        for column in order[0].tolist():
            factor = factors[0, column].item()
            if column != HUE:
                image = TORCHVISION[column](image, factor)
            elif len(image) == 3:
                # torchvision itself turns hues in float32 only.
                image = hue_oracle(image, factor)
        return image
    if isinstance(view, OneOf):
        position = int(view.decide(numbers))
        start = 1 + sum(other.n_uniforms for other in view.views[:position])
        chosen = view.views[position]
        return oracle(chosen, image, row[start : start + chosen.n_uniforms])
    if isinstance(view, Crop):
        box = view.decide(numbers, *image.shape[1:])[0].tolist()
        return v2.functional.resized_crop(image, *box, list(image.shape[1:]), antialias=True)
    if isinstance(view, Blur):
        chosen, sigma = view.decide(numbers)
        size, sigmas = [view.kernel] * 2, [sigma.item()] * 2
        return v2.functional.gaussian_blur(image, size, sigmas) if chosen else image
    if not view.decide(numbers):
        return image
    if isinstance(view, Grayscale):
        return v2.functional.rgb_to_grayscale(image, num_output_channels=len(image))
    return v2.functional.hflip(image) if isinstance(view, Flip) else v2.functional.invert(image)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", VIEW_SETS)
def test_each_set_equals_torchvision(name: str, channels: int) -> None:
    views = get_views(name)
    x = images(channels=channels, dtype=torch.float64)
    uniforms = views.uniforms(len(x), seeded())
    result = views(x, seeded())
    for i, image in enumerate(x):
        start = 0
        for view in views:
            image = oracle(view, image, uniforms[i, start : start + view.n_uniforms])
            start += view.n_uniforms
        torch.testing.assert_close(result[i], image, rtol=0, atol=1e-10)


def test_the_sets_are_those_of_the_paper() -> None:
    jitter = ColorJitter(0.8, 0.8, 0.8, 0.2)
    choice = OneOf((Grayscale(0.5), Invert(0.5)))
    blur = Blur(3, (1.0, 2.0), 0.5)
    assert list(VIEW_SETS["swr"]) == [jitter, choice, blur]
    assert list(VIEW_SETS["test"]) == [jitter, Grayscale(0.5), blur]
    assert set(VIEW_SETS["projector"]) == {*VIEW_SETS["test"], Crop((0.2, 1.0)), Flip(0.5)}
    assert list(VIEW_SETS["color"]) == [jitter]
    assert list(VIEW_SETS["color+gray"]) == [jitter, Grayscale(0.5)]
    assert list(VIEW_SETS["color+gray+invert"]) == [jitter, choice]
    assert VIEW_SETS["color+gray+invert+blur"] == VIEW_SETS["swr"]
    assert list(VIEW_SETS["color+gray+invert+blur+flip"]) == [jitter, choice, blur, Flip(0.5)]
    assert list(VIEW_SETS["color+gray+invert+blur+flip+crop"])[-2:] == [Flip(0.5), Crop()]
    assert len(VIEW_SETS["none"]) == 0


def chi_square(counts: Tensor) -> float:
    expected = counts.sum().double() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("column", range(4))
def test_factors_are_uniform(column: int) -> None:
    jitter = ColorJitter(0.8, 0.5, 1.5, 0.2)
    factors, _ = jitter.decide(jitter.uniforms(N_DRAWS, seeded(column)))
    low, high = [(0.2, 1.8), (0.5, 1.5), (0.0, 2.5), (-0.2, 0.2)][column]
    assert factors[:, column].min() >= low
    assert factors[:, column].max() <= high
    counts = torch.histc(factors[:, column], bins=10, min=low, max=high)
    assert chi_square(counts) < CHI_SQUARE[9]


def test_orders_are_uniform_and_independent_of_the_sample() -> None:
    jitter = ColorJitter()
    _, order = jitter.decide(jitter.uniforms(N_DRAWS, seeded()))
    names = {permutation: i for i, permutation in enumerate(itertools.permutations(range(4)))}
    which = torch.tensor([names[tuple(row)] for row in order.tolist()])
    assert chi_square(torch.bincount(which, minlength=24)) < CHI_SQUARE[23]


def test_choices_are_uniform() -> None:
    view = OneOf((Grayscale(), Invert(), Flip()))
    counts = torch.bincount(view.decide(view.uniforms(N_DRAWS, seeded())), minlength=3)
    assert chi_square(counts) < CHI_SQUARE[2]


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("kind", [Grayscale, Invert, Flip, Blur])
def test_probabilities(kind: type[View], p: float) -> None:
    view = kind(p=p)
    decided = view.decide(view.uniforms(N_DRAWS, seeded()))
    chosen = decided[0] if isinstance(decided, tuple) else decided
    spread = (N_DRAWS * p * (1 - p)) ** 0.5
    assert abs(int(chosen.sum()) - N_DRAWS * p) <= 3.3 * spread


def test_sigmas_are_uniform() -> None:
    _, sigmas = Blur(sigma=(1.0, 2.0)).decide(Blur().uniforms(N_DRAWS, seeded()))
    assert chi_square(torch.histc(sigmas, bins=10, min=1.0, max=2.0)) < CHI_SQUARE[9]


@pytest.mark.parametrize("kind", [Grayscale, Invert, Flip, Blur])
def test_probability_zero_changes_no_bit_and_one_changes_all(kind: type[View]) -> None:
    x = images()
    assert torch.equal(Views((kind(p=0),))(x, seeded()), x)
    result = Views((kind(p=1),))(x, seeded())
    assert all(not torch.equal(a, b) for a, b in zip(result, x, strict=True))


@pytest.mark.parametrize("kind", [Grayscale, Invert, Flip, Blur])
def test_samples_left_alone_keep_every_bit(kind: type[View]) -> None:
    x, view = images(), kind(p=0.5)
    decided = view.decide(view.uniforms(len(x), seeded()))
    chosen = decided[0] if isinstance(decided, tuple) else decided
    result = Views((view,))(x, seeded())
    changed = (result != x).flatten(1).any(dim=1)
    assert torch.equal(changed, chosen)
    assert 0 < int(chosen.sum()) < len(x)


def test_the_same_seed_gives_the_same_views() -> None:
    x, views = images(), get_views("projector")
    assert torch.equal(views(x, seeded(1)), views(x, seeded(1)))
    assert not torch.equal(views(x, seeded(1)), views(x, seeded(2)))


@pytest.mark.parametrize("name", VIEW_SETS)
def test_cutting_a_batch_does_not_change_the_draws(name: str) -> None:
    x, views = images(dtype=torch.float64), get_views(name)
    generator = seeded()
    halves = [views.uniforms(n, generator) for n in (7, 17)]
    assert torch.equal(torch.cat(halves), views.uniforms(24, seeded()))
    generator = seeded()
    parts = torch.cat([views(part, generator) for part in x.split([7, 17])])
    # The draws are equal; sums may be rounded differently in batches of another size.
    torch.testing.assert_close(parts, views(x, seeded()), rtol=0, atol=1e-10)


def test_the_draws_do_not_depend_on_the_pixels() -> None:
    views = get_views("projector")
    first, second = seeded(), seeded()
    views(torch.zeros(5, 3, 8, 8), first)
    views(torch.rand(5, 3, 8, 8, generator=seeded(4)), second)
    assert torch.equal(first.get_state(), second.get_state())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", VIEW_SETS)
def test_type_shape_range_and_input_are_kept(name: str, channels: int, dtype: torch.dtype) -> None:
    x, views = images(channels=channels).to(dtype), get_views(name)
    before = x.clone()
    result = views(x, seeded())
    assert torch.equal(x, before)
    assert (result.shape, result.dtype, result.device) == (x.shape, x.dtype, x.device)
    assert result.data_ptr() != x.data_ptr()
    assert result.min() >= 0
    assert result.max() <= 1
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    assert torch.equal(result, views(x.to(precise), seeded()).to(dtype))


@pytest.mark.parametrize("name", VIEW_SETS)
def test_layouts_do_not_matter_and_channels_last_is_kept(name: str) -> None:
    x, views = images(), get_views(name)
    expected = views(x, seeded())
    result = views(x.to(memory_format=torch.channels_last), seeded())
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(result, expected)
    strided = torch.stack([x, x], dim=1).flatten(0, 1)[::2]
    assert not strided.is_contiguous()
    assert torch.equal(views(strided, seeded()), expected)


def test_autocast_and_gradients_do_not_matter() -> None:
    x, views = images(), get_views("projector")
    expected = views(x, seeded())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(views(x, seeded()), expected)
    for each in (views, Views((Crop(), Blur(p=1), Invert(p=1)))):
        result = each(x.clone().requires_grad_(), seeded())
        assert not result.requires_grad
        assert torch.equal(result, each(x, seeded()))
    with torch.inference_mode():
        inference = x.clone()
    assert not views(inference, seeded()).is_inference()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_every_device_gives_the_same() -> None:
    x = images(dtype=torch.float64)
    for name, views in VIEW_SETS.items():
        result = views(x.cuda(), seeded())
        assert result.is_cuda, name
        torch.testing.assert_close(result.cpu(), views(x, seeded()), rtol=0, atol=1e-10)


def test_an_empty_batch_stays_empty() -> None:
    assert VIEW_SETS["projector"](torch.zeros(0, 3, 8, 8), seeded()).shape == (0, 3, 8, 8)


@pytest.mark.parametrize(
    ("x", "code", "found"),
    [
        (torch.rand(2, 4, 8, 8), "wrong_shape", (2, 4, 8, 8)),
        (torch.rand(2, 8, 8, 3), "wrong_shape", (2, 8, 8, 3)),
        (torch.rand(3, 8, 8), "wrong_shape", (3, 8, 8)),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "wrong_dtype", "uint8"),
        (torch.rand(2, 3, 1, 8), "image_too_small", (1, 8)),
    ],
)
def test_unsuitable_images_are_refused(x: Tensor, code: str, found: object) -> None:
    with raises(code, found=found):
        Views((Blur(p=1),))(x, seeded())


def test_a_generator_elsewhere_is_refused() -> None:
    generator = SimpleNamespace(device=torch.device("cuda"))
    with raises("out_of_range", option="generator", found="cuda"):
        get_views("swr")(images(), generator)  # type: ignore[arg-type]


@pytest.mark.parametrize("normalization", ["cifar10", "imagenet", None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_views_of_normalised_images(normalization: str | None, dtype: torch.dtype) -> None:
    x, views = images(dtype=dtype), get_views("projector")
    constants = Normalization.of(normalization)
    if constants is None:
        assert torch.equal(apply_views(views, x, None, seeded()), views(x, seeded()))
        return
    normalised = constants.normalize(x)
    before = normalised.clone()
    result = apply_views(views, normalised, constants, seeded())
    assert result.dtype == dtype
    assert torch.equal(normalised, before)
    mean = torch.tensor(constants.mean, dtype=torch.float64).view(3, 1, 1)
    std = torch.tensor(constants.std, dtype=torch.float64).view(3, 1, 1)
    pixels = (normalised.double() * std + mean).clamp(0, 1)
    expected = (views(pixels, seeded()) - mean) / std
    # One half step of the type at the largest value, 2.7; float32 has a chain of hues before it.
    tolerance = {torch.float64: 1e-10, torch.float32: 5e-5, torch.bfloat16: 2**-7 + 5e-5}[dtype]
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance)


def test_no_views_leave_normalised_images_as_they_are() -> None:
    x = Normalization.of("cifar10").normalize(images())  # type: ignore[union-attr]
    result = apply_views(VIEW_SETS["none"], x, Normalization.of("cifar10"), seeded())
    assert torch.equal(result, x)
    assert result.data_ptr() != x.data_ptr()
