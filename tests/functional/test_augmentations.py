"""CoTTA's augmentation against torchvision's transforms, AugMix's operations against Pillow's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from acclimate.errors import InvalidConfig
from acclimate.functional.augmentations import CottaAugmentation, augment
from acclimate.functional.augmix import OPERATIONS, AugMix, apply_chains
from acclimate.functional.image_ops import apply_colours, turn_and_scale, warp
from acclimate.functional.inputs import Normalization
from tests.codes import raises
from tests.functional.test_colour import hue_oracle
from tests.torchvision_compat import v2

F = v2.functional


def images(n=4, channels=3, height=12, width=16, seed=0, dtype=torch.float64):
    draws = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, channels, 4, 4, generator=draws, dtype=torch.float64)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    noise = 0.2 * torch.rand(smooth.shape, generator=draws, dtype=torch.float64)
    return (smooth + noise).clamp(0, 1).to(dtype)


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


# CoTTA -------------------------------------------------------------------------------------------


def official(x, u, padding, blur):
    """CoTTA's transform of a batch, by torchvision, for given uniform numbers.

    Hues are turned by the standard library: torchvision does so in float32, of which one step alone
    is 7e-7 of the colour range.
    """
    size = x.shape[2:]
    changes = [
        lambda x: F.adjust_brightness(x, 0.6 + 0.8 * u[0]),
        lambda x: F.adjust_contrast(x, 0.7 + 0.6 * u[1]),
        lambda x: F.adjust_saturation(x, 0.5 + 1.0 * u[2]),
        lambda x: torch.stack([hue_oracle(image, -0.06 + 0.12 * u[3]) for image in x]),
        lambda x: F.adjust_gamma(x.clamp(1e-8, 1), 0.7 + 0.6 * u[4]),
    ]
    for number in np.argsort(u[5:10]):
        if x.shape[1] == 3 or number not in (2, 3):
            x = changes[number](x)
    x = F.pad(x, [size[1] // 2, size[0] // 2], padding_mode=padding)
    x = F.affine(
        x,
        angle=-15 + 30 * u[10],
        translate=[round(s / 8 * (2 * v - 1)) for s, v in ((size[1], u[12]), (size[0], u[13]))],
        scale=0.9 + 0.2 * u[11],
        shear=[0.0, 0.0],
        interpolation=v2.InterpolationMode.BILINEAR,
    )
    if blur:
        x = F.gaussian_blur(x, [5, 5], [0.001 + 0.499 * u[14]] * 2)
    x = F.center_crop(x, list(size))
    return F.horizontal_flip(x) if u[15] < 0.5 else x


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("padding", ["edge", "reflect"])
@pytest.mark.parametrize("channels", [1, 3])
def test_cotta_s_augmentation_is_torchvision_s(seed, padding, channels):
    x = images(channels=channels, height=16, width=24)
    blur = seed % 2 == 0
    how = CottaAugmentation(padding=padding, blur=blur, noise=0.0)
    u = torch.rand(16, generator=generator(seed), dtype=torch.float64).tolist()
    expected = official(x, u, padding, blur)
    assert (how(x, generator(seed)) - expected).abs().max() < 1e-6


def test_draws_of_an_image_do_not_depend_on_the_others():
    x = images()
    how = CottaAugmentation(noise=0.0, per_image=True)
    one = generator()
    alone = torch.cat([how(image, one) for image in x.split(1)])
    assert torch.allclose(how(x, generator()), alone, atol=1e-12)
    alike = how(x[:1].repeat(4, 1, 1, 1), generator())
    assert min((alike[0] - other).abs().max() for other in alike[1:]) > 0.01


def test_by_default_a_batch_is_changed_as_one():
    x = images(1).repeat(4, 1, 1, 1)
    out = CottaAugmentation(noise=0.0)(x, generator())
    assert torch.allclose(out, out[:1].expand_as(out), atol=1e-12)
    assert (out - x).abs().max() > 0.01


def test_the_noise_is_every_pixel_s_own():
    x = torch.full((8, 3, 32, 32), 0.5, dtype=torch.float64)
    plain = CottaAugmentation(noise=0.0)(x, generator())
    noise = CottaAugmentation(noise=0.01)(x, generator()) - plain
    assert 0.0095 < noise.std() < 0.0105
    assert (noise[0] - noise[1]).abs().max() > 0.01


def test_colours_of_each_image_are_those_it_would_have_alone():
    x = images(6)
    draws = generator()
    factors = 0.7 + 0.6 * torch.rand(6, 5, generator=draws, dtype=torch.float64)
    factors[:, 3] -= 1
    order = torch.rand(6, 5, generator=draws).argsort(dim=1)
    alone = [apply_colours(x[i : i + 1], factors[i : i + 1], order[i : i + 1]) for i in range(6)]
    assert torch.allclose(apply_colours(x, factors, order), torch.cat(alone), atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 10**6),
    st.tuples(st.integers(1, 5), st.sampled_from([1, 3]), st.integers(1, 20), st.integers(1, 20)),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    st.booleans(),
    st.sampled_from(["cotta", "roid", "memo", "crop"]),
)
def test_any_image_stays_an_image(seed, shape, dtype, per_image, kind):
    how = {
        "cotta": CottaAugmentation(per_image=per_image),
        "roid": CottaAugmentation("reflect", blur=False, noise=0.0, per_image=per_image),
        "memo": AugMix(severity=10.0),
        "crop": AugMix(place="crop"),
    }[kind]
    x = torch.rand(shape, generator=generator(seed)).to(dtype)
    kept = x.clone()
    out = augment(how, x, None, generator(seed))
    assert out.shape == x.shape
    assert out.dtype == dtype
    assert bool(((out >= 0) & (out <= 1)).all())
    assert torch.equal(x, kept)
    assert torch.equal(out, augment(how, x, None, generator(seed)))


@pytest.mark.parametrize("how", [CottaAugmentation(), AugMix()])
def test_normalised_images_are_augmented_as_images(how):
    x = images()
    normal = Normalization((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    expected = normal.normalize(augment(how, x, None, generator()))
    found = augment(how, normal.normalize(x), normal, generator())
    # Where a value is rounded to eight bits, the way to [0, 1] and back can tip it over.
    assert (found - expected).abs().median() < 1e-12
    assert ((found - expected).abs() < 1e-9).double().mean() > 0.99
    with raises("pixel_range", low=lambda low: low < 0, high=lambda high: high > 1):
        augment(how, normal.normalize(x), None, generator())


@pytest.mark.parametrize("how", [CottaAugmentation(), AugMix()])
def test_layout_and_autocast_make_no_difference(how):
    x = images(dtype=torch.float32)
    expected = augment(how, x, None, generator())
    last = augment(how, x.to(memory_format=torch.channels_last), None, generator())
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(augment(how, x, None, generator()), expected)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: CottaAugmentation(padding="wrap"), "padding"),
        (lambda: CottaAugmentation(noise=-1.0), "noise"),
        (lambda: CottaAugmentation(noise=math.nan), "noise"),
        (lambda: AugMix(severity=11.0), "severity"),
        (lambda: AugMix(place="stretch"), "place"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, option):
    with raises("invalid_options", InvalidConfig, problems=lambda found: set(found) == {option}):
        make()


# Maps --------------------------------------------------------------------------------------------


def slow_warp(image, matrix, fill):
    """One channel, pixel by pixel; what lies outside is `fill`."""
    height, width = image.shape
    out = np.zeros((height, width))

    def at(row, column):
        inside = 0 <= row < height and 0 <= column < width
        return image[row, column] if inside else fill

    for i in range(height):
        for j in range(width):
            place = matrix @ np.array([j - (width - 1) / 2, i - (height - 1) / 2, 1.0])
            column, row = place[0] + (width - 1) / 2, place[1] + (height - 1) / 2
            top, left = math.floor(row), math.floor(column)
            down, right = row - top, column - left
            out[i, j] = (1 - down) * (1 - right) * at(top, left)
            out[i, j] += (1 - down) * right * at(top, left + 1)
            out[i, j] += down * (1 - right) * at(top + 1, left)
            out[i, j] += down * right * at(top + 1, left + 1)
    return out


def test_a_map_samples_bilinearly():
    x = images(3, 1, 7, 10)
    maps = turn_and_scale(
        *torch.tensor([[0.4, -1.0, 2.0], [1.1, 0.8, 1.0], [2, 0, -3], [1, -2, 0]])
    )
    found = warp(x, maps.double(), "zeros")
    for image, matrix, out in zip(x, maps.double().numpy(), found, strict=True):
        assert np.abs(out[0].numpy() - slow_warp(image[0].numpy(), matrix, 0.0)).max() < 1e-6


def test_a_quarter_turn_and_a_shift_are_exact():
    x = images(1, 3, 9, 9)
    zero, one = torch.zeros(1), torch.ones(1)
    turned = warp(x, turn_and_scale(zero + math.pi / 2, one, zero, zero), "zeros")
    assert torch.allclose(turned, x.rot90(-1, (2, 3)), atol=1e-6)
    moved = warp(x, turn_and_scale(zero, one, 2 * one, -one), "border")
    assert torch.allclose(moved[..., :-1, 2:], x[..., 1:, :-2], atol=1e-12)
    assert torch.allclose(moved[..., :-1, 0], x[..., 1:, 0], atol=1e-12)


# AugMix ------------------------------------------------------------------------------------------


def bytes_of(x):
    return (x * 255).round().to(torch.uint8)


def by_pillow(x, change):
    """Apply a change of Pillow images to each image; return 8-bit values."""
    out = [change(Image.fromarray(image.permute(1, 2, 0).numpy())) for image in bytes_of(x)]
    return torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in out])


TONES = {
    "autocontrast": ImageOps.autocontrast,
    "equalize": ImageOps.equalize,
    "posterize": lambda image: ImageOps.posterize(image, 3),
    "solarize": lambda image: ImageOps.solarize(image, 256 - 76),
}


@pytest.mark.parametrize("name", TONES)
def test_tones_are_pillow_s(name):
    number = OPERATIONS.index(name)
    x = bytes_of(images(6, height=24, width=20)).double() / 255
    x[0] = 0.2  # one value only
    x[1] = x[1].clamp(0.4, 0.6)
    one = torch.ones(6)
    found = apply_chains(x, one.long(), torch.full((6, 1), number), 3 * one[:, None])
    tolerance = 1 if name == "autocontrast" else 0  # Pillow cuts off what is rounded here
    difference = bytes_of(found).int() - by_pillow(x, TONES[name]).int()
    assert difference.abs().max() <= tolerance
    if name != "autocontrast":
        assert torch.equal(found, bytes_of(found).double() / 255)


def pillow_map(image, coefficients):
    grey = (128, 128, 128)
    return image.transform(
        image.size, Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR, fillcolor=grey
    )


PLACES = {
    "rotate": lambda image: image.rotate(12, Image.Resampling.BILINEAR, fillcolor=(128, 128, 128)),
    "shear_x": lambda image: pillow_map(image, (1, 0.12, 0, 0, 1, 0)),
    "shear_y": lambda image: pillow_map(image, (1, 0, 0, 0.12, 1, 0)),
    "translate_x": lambda image: pillow_map(image, (1, 0, 4, 0, 1, 0)),
    "translate_y": lambda image: pillow_map(image, (1, 0, 0, 0, 1, 3)),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_are_pillow_s_but_for_the_border_and_rounding(name):
    number = OPERATIONS.index(name)
    x = bytes_of(images(2, height=24, width=30)).double() / 255
    level = torch.full((2, 1), 4.0)
    found = apply_chains(x, torch.ones(2).long(), torch.full((2, 1), number), level)
    expected = by_pillow(x, PLACES[name])
    difference = (found * 255 - expected.double()).abs()
    # At the border Pillow does not mix with what lies outside.
    assert (difference < 1.01).double().mean() > 0.9
    assert (difference < 1.01)[..., 8:-8, 8:-8].all()


def slow_chain(image, depth, operations, levels):
    """One image after its chain, one operation at a time."""
    for number, level in list(zip(operations, levels, strict=True))[:depth]:
        levels_of_one = torch.tensor([[level]], dtype=torch.float64)
        image = apply_chains(image, torch.tensor([1]), torch.tensor([[number]]), levels_of_one)
    return image


def test_copies_are_the_published_mixture():
    x = images(10, height=16, width=16)
    draws = torch.rand(10, 37, generator=generator(), dtype=torch.float64)
    expected = []
    for image, u in zip(x, draws.tolist(), strict=True):
        padded = np.pad(image.numpy(), ((0, 0), (2, 2), (2, 2)))
        top, left = int(5 * u[0]), int(5 * u[1])
        first = padded[:, top : top + 16, left : left + 16]
        first = torch.from_numpy((first[..., ::-1] if u[2] < 0.5 else first).copy())
        shares = np.array([-math.log(1 - v) for v in u[4:7]])
        shares /= shares.sum()
        mixed = torch.zeros_like(first)
        for chain in range(3):
            steps = slice(3 * chain, 3 * chain + 3)
            signs = [-1 if v < 0.5 else 1 for v in u[28:37][steps]]
            levels = [s * (0.1 + 2.9 * v) for s, v in zip(signs, u[19:28][steps], strict=True)]
            operations = [int(9 * v) for v in u[10:19][steps]]
            depth = 1 + int(3 * u[7 + chain])
            mixed += shares[chain] * slow_chain(first[None], depth, operations, levels)[0]
        expected.append(u[3] * first + (1 - u[3]) * mixed)
    found = AugMix(severity=3.0)(x, generator())
    assert (found - torch.stack(expected)).abs().max() < 1e-9


def test_all_that_is_drawn_is_drawn_often_enough():
    draws = torch.rand(4000, 37, generator=generator(), dtype=torch.float64)
    shares = -torch.log1p(-draws[:, 4:7])
    shares = shares / shares.sum(dim=1, keepdim=True)
    assert torch.allclose(shares.mean(dim=0), torch.full((3,), 1 / 3).double(), atol=0.02)
    assert torch.allclose(shares.var(dim=0), torch.full((3,), 1 / 18).double(), atol=0.005)
    n_each = (draws[:, 10:19] * 9).long().flatten().bincount(minlength=9)
    assert n_each.min() > 0.9 * 4000


def test_crops_are_of_the_image():
    x = images(32, height=16, width=16)
    out = AugMix(severity=0.1, place="crop")(x, generator())
    assert (out - AugMix(severity=0.1)(x, generator())).abs().max() > 0.05
    assert bool(((out >= 0) & (out <= 1)).all())
