"""AugMix against Pillow and NumPy, one image at a time."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor, nn

from acclimate.corruptions import CORRUPTIONS
from acclimate.functional.augmix import (
    OPERATIONS,
    AugMixOptions,
    Draws,
    apply_chains,
    draw,
    mix,
    shift_and_flip,
)
from acclimate.training.objectives import AugMixJsd, jensen_shannon
from tests.codes import raises

Pixels = npt.NDArray[np.uint8]
INTERPOLATING = ("rotate", "shear_x", "shear_y")
SIZE = (20, 26)  # height and width


def apply_operation(name: str, x: Tensor, levels: Tensor) -> Tensor:
    """Return uint8 images after one operation."""
    numbers = torch.full((len(x), 1), OPERATIONS.index(name))
    return apply_chains(x, torch.ones(len(x)).long(), numbers, levels[:, None])


def oracle(name: str, pixels: Pixels, level: float) -> Pixels:
    """Return one image (height, width, 3) under one operation, as Pillow does it."""
    image = Image.fromarray(pixels)
    height, width = pixels.shape[:2]
    strength, sign = abs(level), 1 if level > 0 else -1
    shear = sign * strength * 0.3 / 10
    shift_x, shift_y = sign * int(strength * width / 30), sign * int(strength * height / 30)
    matrices = {
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, shift_x, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift_y),
    }
    if name == "autocontrast":
        out = ImageOps.autocontrast(image)
    elif name == "equalize":
        out = ImageOps.equalize(image)
    elif name == "posterize":
        out = ImageOps.posterize(image, 4 - int(strength * 4 / 10))
    elif name == "solarize":
        out = ImageOps.solarize(image, 256 - int(strength * 256 / 10))
    elif name == "rotate":
        out = image.rotate(sign * int(strength * 30 / 10), Image.Resampling.BILINEAR)
    else:
        out = image.transform(
            image.size, Image.Transform.AFFINE, matrices[name], Image.Resampling.BILINEAR
        )
    return np.asarray(out)


def make_images(n: int, kind: str = "smooth") -> Tensor:
    """Return images of several kinds; smooth ones have the histograms photographs have."""
    draws = np.random.default_rng(n)
    if kind == "noise":
        pixels = draws.integers(0, 256, (n, 3, *SIZE))
    elif kind == "narrow":
        pixels = draws.integers(100, 131, (n, 3, *SIZE))
    elif kind == "flat":
        pixels = np.broadcast_to(draws.integers(0, 256, (n, 3, 1, 1)), (n, 3, *SIZE))
    else:
        row, column = np.mgrid[0 : SIZE[0], 0 : SIZE[1]]
        phase = draws.uniform(0, 6, (n, 3, 2, 1, 1))
        waves = np.sin(row / 3 + phase[:, :, 0]) + np.cos(column / 5 + phase[:, :, 1])
        pixels = 127 + 60 * waves + draws.normal(0, 4, (n, 3, *SIZE))
    return torch.from_numpy(np.clip(pixels, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("kind", ["smooth", "noise", "narrow", "flat"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_pillows(name: str, kind: str) -> None:
    x = make_images(24, kind)
    levels = torch.linspace(-9.9, 9.9, 24)
    out = apply_operation(name, x, levels)
    assert out.dtype == torch.uint8
    assert out.shape == x.shape
    for image, level, result in zip(x, levels.tolist(), out, strict=True):
        expected = oracle(name, image.permute(1, 2, 0).numpy(), level).astype(int)
        found = result.permute(1, 2, 0).numpy().astype(int)
        # Pillow cuts off fractions where pixels are interpolated, and computes the contrast with
        # floating-point numbers that fall just short of a whole one; here both are exact.
        at_most = 1 if name in (*INTERPOLATING, "autocontrast") else 0
        assert np.abs(expected - found).max() <= at_most


def test_contrast_is_exact() -> None:
    x = make_images(3, "narrow")
    out = apply_operation("autocontrast", x, torch.ones(3))
    for channel, result in zip(x.flatten(0, 1).numpy(), out.flatten(0, 1).numpy(), strict=True):
        low, high = int(channel.min()), int(channel.max())
        for value in range(low, high + 1):
            expected = int(Fraction(255 * (value - low), high - low))
            assert set(result[channel == value].tolist()) <= {expected}


def test_images_of_a_batch_do_not_touch_each_other() -> None:
    x, levels = make_images(6), torch.tensor([0.5, -3.0, 2.0, 9.0, -7.0, 1.0])
    for name in OPERATIONS:
        alone = torch.cat(
            [apply_operation(name, x[i : i + 1], levels[i : i + 1]) for i in range(6)]
        )
        # Between two levels, the last bit of a sum decides, which may depend on the batch's size.
        at_most = 1 if name in INTERPOLATING else 0
        apart = (apply_operation(name, x, levels).int() - alone.int()).abs()
        assert apart.max() <= at_most, name


def test_no_operation_is_a_corruption_that_is_tested_with() -> None:
    assert not {*OPERATIONS} & {*CORRUPTIONS, "contrast", "brightness", "sharpness", "color"}


# Draws ------------------------------------------------------------------------------------------


def test_draws_have_the_distributions_of_the_paper() -> None:
    options = AugMixOptions(severity=3, width=4, depth=3, alpha=0.7)
    draws = draw(6000, options, torch.Generator().manual_seed(0))
    shares = draws.depths.flatten().bincount(minlength=4) / draws.depths.numel()
    torch.testing.assert_close(shares, torch.tensor([0, 1 / 3, 1 / 3, 1 / 3]), atol=0.01, rtol=0)
    shares = draws.operations.flatten().bincount(minlength=9) / draws.operations.numel()
    torch.testing.assert_close(shares, torch.full((9,), 1 / 9), atol=0.01, rtol=0)
    sizes = draws.levels.abs()
    assert 0.1 <= sizes.min() < 0.11
    assert 2.99 < sizes.max() <= 3
    assert float(sizes.mean()) == pytest.approx(1.55, abs=0.01)
    assert float((draws.levels > 0).float().mean()) == pytest.approx(0.5, abs=0.01)
    torch.testing.assert_close(draws.weights.sum(dim=1), torch.ones(6000))
    # A coordinate of a Dirichlet distribution has mean 1/k and variance (k − 1) / (k² (kα + 1)).
    assert float(draws.weights.double().mean()) == pytest.approx(1 / 4, abs=1e-6)
    assert float(draws.weights.var()) == pytest.approx(3 / (16 * 3.8), abs=0.002)
    assert float(draws.parts.mean()) == pytest.approx(0.5, abs=0.015)
    assert float(draws.parts.var()) == pytest.approx(1 / (4 * 2.4), abs=0.005)


def test_draws_depend_on_the_generator_alone() -> None:
    first = draw(5, AugMixOptions(), torch.Generator().manual_seed(3))
    torch.manual_seed(9)
    np.random.seed(9)
    second = draw(5, AugMixOptions(), torch.Generator().manual_seed(3))
    other = draw(5, AugMixOptions(), torch.Generator().manual_seed(4))
    for name in ("depths", "operations", "levels", "weights", "parts"):
        assert torch.equal(getattr(first, name), getattr(second, name))
        assert not torch.equal(getattr(first, name), getattr(other, name))


@pytest.mark.parametrize(
    "options", [{"severity": 11}, {"severity": 0}, {"width": 0}, {"depth": 0}, {"alpha": 0}]
)
def test_options_that_cannot_be_are_refused(options: dict[str, float]) -> None:
    with raises("invalid_options", problems=lambda found: set(found) == set(options)):
        AugMixOptions(**options)  # type: ignore[arg-type]


# Mixing and loss --------------------------------------------------------------------------------


def mix_slowly(x: Tensor, draws: Draws) -> npt.NDArray[np.float64]:
    """Return what `mix` does, image by image and chain by chain, as the paper writes it."""
    out = []
    for index, image in enumerate(x.permute(0, 2, 3, 1).numpy()):
        total = np.zeros(image.shape)
        for chain, weight in enumerate(draws.weights[index].tolist()):
            pixels = image.copy()
            for step in range(int(draws.depths[index, chain])):
                name = OPERATIONS[int(draws.operations[index, chain, step])]
                pixels = oracle(name, pixels, float(draws.levels[index, chain, step]))
            total += weight * pixels / 255
        part = float(draws.parts[index])
        out.append((1 - part) * image / 255 + part * total)
    return np.stack(out).transpose(0, 3, 1, 2)


def test_mixing_is_the_loop_over_images() -> None:
    x = make_images(40)
    draws = draw(40, AugMixOptions(), torch.Generator().manual_seed(2))
    # Where Pillow's rounding differs by one level, an operation that follows may multiply that;
    # chains of operations that are exact must agree to rounding.
    exact = ("posterize", "solarize", "translate_x", "translate_y", "equalize")
    numbers = torch.tensor([OPERATIONS.index(name) for name in exact])
    plain = Draws(
        draws.depths, numbers[draws.operations % 5], draws.levels, draws.weights, draws.parts
    )
    before = x.clone()
    mixed = mix(x, plain)
    assert torch.equal(x, before)
    assert mixed.dtype == torch.float32
    np.testing.assert_allclose(mixed.numpy(), mix_slowly(x, plain), atol=1e-6)
    found, expected = mix(x, draws).numpy(), mix_slowly(x, draws)
    assert np.abs(found - expected).mean() < 0.5 / 255
    assert mixed.min() >= 0
    assert mixed.max() <= 1


def test_the_divergence_is_the_sum_of_its_parts() -> None:
    logits = 3 * torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0)).double()
    probs = F.softmax(logits, dim=2).numpy()
    total = 0.0
    for image in range(7):
        mean = probs[:, image].mean(axis=0)
        for prediction in probs[:, image]:
            total += float(np.sum(prediction * np.log(prediction / mean))) / 3 / 7
    assert float(jensen_shannon(logits)) == pytest.approx(total, rel=1e-12)
    assert float(jensen_shannon(logits[:1].repeat(3, 1, 1))) == pytest.approx(0, abs=1e-12)
    apart = torch.eye(3).mul(1e4)[:, None]  # three different certain answers
    assert float(jensen_shannon(apart)) == pytest.approx(np.log(3))
    logits.requires_grad_(True)
    assert torch.autograd.gradcheck(jensen_shannon, logits)


def test_the_objective_is_cross_entropy_on_clean_images_and_twelve_times_the_divergence() -> None:
    x, y = make_images(8), torch.arange(8) % 4
    seen: list[Tensor] = []

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x)
            return (
                5
                * x.mean(dim=(2, 3))
                @ torch.tensor([[1.0, -1, 0, 2], [0, 1, 1, -1], [2, 0, -1, 0]])
            )

    loss = AugMixJsd()(Model(), x, y, torch.Generator().manual_seed(6))
    assert len(seen) == 1
    assert seen[0].shape == (24, 3, *SIZE)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    clean, first, second = seen[0].chunk(3)
    moved = shift_and_flip(x, torch.Generator().manual_seed(6))
    assert torch.equal(clean, moved.float() / 255)
    assert not torch.equal(first, second)
    logits = Model()(torch.cat([clean, first, second]))
    probs = F.softmax(logits, dim=1).chunk(3)
    # The form of the authors' code: https://github.com/google-research/augmix, cifar.py.
    log_mean = torch.clamp((probs[0] + probs[1] + probs[2]) / 3, 1e-7, 1).log()
    divergence = sum(F.kl_div(log_mean, part, reduction="batchmean") for part in probs) / 3
    expected = F.cross_entropy(logits[:8], y) + 12 * divergence
    torch.testing.assert_close(loss, expected)
