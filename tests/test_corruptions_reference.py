"""The corruptions against the output of their authors' program, where it is at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from acclimate import data, zoo
from acclimate.corruptions import BENCHMARK, apply, sampling
from acclimate.corruptions.frost import find_photographs
from acclimate.errors import BadInput

SHARED = Path(__file__).resolve().parents[2] / "shared"
REFERENCE = Path(os.environ.get("ACCLIMATE_REFERENCE", SHARED / "reference"))
WEIGHTS = SHARED / "data" / "weights" / "cifar10-resnet20.safetensors"

FIXED = (*("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"),)
RANDOM = tuple(name for name in BENCHMARK if name not in FIXED)

Values = npt.NDArray[np.float64]
Pair = tuple[npt.NDArray[np.uint8], dict[str, npt.NDArray[np.uint8]]]


@pytest.fixture(scope="module")
def reference() -> Pair:
    clean = REFERENCE / "cifar10-test-first500.npy"
    corrupted = REFERENCE / "cifar10c-authors-severity5-first500.npz"
    if not (clean.is_file() and corrupted.is_file()):
        pytest.skip(f"no reference images in {REFERENCE}; set ACCLIMATE_REFERENCE to their folder")
    with np.load(corrupted) as file:
        return np.load(clean), {name: file[name] for name in BENCHMARK}


def need(name: str) -> None:
    if name == "frost" and find_photographs() is None:
        pytest.skip("no photographs of frost; install imagecorruptions-imaug")
    if name in ("glass_blur", "zoom_blur", "elastic_transform"):
        pytest.importorskip("scipy", reason="needs acclimate[corruptions]")


def ks_p_value(a: Values, b: Values) -> float:
    """Asymptotic p-value of the two-sample Kolmogorov-Smirnov test."""
    a, b = np.sort(a), np.sort(b)
    both = np.concatenate([a, b])
    below_a = np.searchsorted(a, both, side="right") / len(a)
    below_b = np.searchsorted(b, both, side="right") / len(b)
    gap = np.abs(below_a - below_b).max()
    if gap < 1e-3:  # the series below does not converge there
        return 1.0
    size = len(a) * len(b) / (len(a) + len(b))
    scaled = (np.sqrt(size) + 0.12 + 0.11 / np.sqrt(size)) * gap
    terms = np.arange(1, 101)
    series = (-1.0) ** (terms - 1) * np.exp(-2 * terms**2 * scaled**2)
    return float(np.clip(2 * series.sum(), 0, 1))


def test_the_ks_test_can_tell() -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 500))
    assert ks_p_value(a, b) > 0.01
    assert ks_p_value(a, b + 0.3) < 0.001


def spectrum(x: Values) -> list[Values]:
    """Return the logarithm of the power of each image in three bands of frequency."""
    size = x.shape[1]
    power = np.abs(np.fft.fft2(x.mean(axis=-1), axes=(1, 2))) ** 2
    line = np.fft.fftfreq(size)
    frequency = np.hypot(line[:, None], line)
    bands = ((0.01, 0.1), (0.1, 0.25), (0.25, 0.8))
    return [
        np.log(power[:, (frequency >= low) & (frequency < high)].mean(axis=1) + 1e-9)
        for low, high in bands
    ]


def statistics(x: Values, clean: Values) -> dict[str, Values]:
    """Return what is compared: of the image, and of what was done to it, which says more."""
    axes = (1, 2, 3)
    change = x - clean
    found = {"mean": x.mean(axis=axes), "std": x.std(axis=axes), "change": change.std(axis=axes)}
    for what, of in (("image", x), ("change", change)):
        found.update({f"{what} band {i}": band for i, band in enumerate(spectrum(of))})
    return found


@pytest.mark.parametrize("name", FIXED)
def test_fixed_corruptions_equal_the_authors(name: str, reference: Pair) -> None:
    need(name)
    clean, corrupted = reference
    difference = np.abs(apply(clean, name, 5).astype(float) - corrupted[name])
    assert difference.mean() <= 0.01
    assert difference.max() <= 1


@pytest.mark.parametrize("name", RANDOM)
def test_random_corruptions_are_distributed_like_the_authors(name: str, reference: Pair) -> None:
    need(name)
    clean, corrupted = reference
    ours = statistics(apply(clean, name, 5).astype(float), clean.astype(float))
    theirs = statistics(corrupted[name].astype(float), clean.astype(float))
    p_values = {what: ks_p_value(ours[what], theirs[what]) for what in ours}
    assert min(p_values.values()) > 0.001, p_values


def test_some_angle_makes_each_motion_of_the_authors(reference: Pair) -> None:
    # The angle is the only thing drawn, and only as many matter as there are sets of pixels read.
    clean, corrupted = reference[0][:30], reference[1]["motion_blur"][:30]
    least = np.full(len(clean), np.inf)
    for angle in np.arange(-45, 45.01, 0.25):
        ours = sampling.blur_along(clean, 9, 2.5, np.full(len(clean), angle))
        distance = np.abs(ours.astype(float) - corrupted).mean(axis=(1, 2, 3))
        least = np.minimum(least, distance)
    assert least.max() < 0.01


# --- what a model makes of them ---------------------------------------------------------------

_errors: dict[str, float] = {}


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    if not WEIGHTS.is_file():
        pytest.skip(f"no weights at {WEIGHTS}")
    return zoo.load("resnet20-cifar10", WEIGHTS)


@pytest.fixture(scope="module")
def expected() -> dict[str, float]:
    path = REFERENCE / "cifar10c-resnet20.json"
    if not path.is_file():
        pytest.skip(f"no reference errors at {path}; set ACCLIMATE_REFERENCE to their folder")
    errors: dict[str, float] = json.loads(path.read_text())["error"]["source"]
    return errors


def predict(model: torch.nn.Module, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    with torch.inference_mode():
        batches = torch.from_numpy(pixels).permute(0, 3, 1, 2).split(500)
        return torch.cat([model(x.float() / 255).argmax(1) for x in batches]).numpy()


def source_error(model: torch.nn.Module, name: str) -> float:
    if name not in _errors:
        try:
            clean = data.load("cifar10")
        except BadInput as error:
            pytest.skip(f"needs CIFAR-10 below ACCLIMATE_DATA: {error}")
        spoiled = apply(np.asarray(clean.images), name, 5)
        _errors[name] = 100 * float(np.mean(predict(model, spoiled) != clean.labels))
    return _errors[name]


@pytest.mark.parametrize("name", BENCHMARK)
def test_the_model_errs_as_on_the_authors(
    name: str, model: torch.nn.Module, expected: dict[str, float]
) -> None:
    need(name)
    assert source_error(model, name) == pytest.approx(expected[name], abs=1.5)


def test_the_model_errs_as_on_the_authors_on_average(
    model: torch.nn.Module, expected: dict[str, float]
) -> None:
    for name in BENCHMARK:
        need(name)
    ours = np.mean([source_error(model, name) for name in BENCHMARK])
    assert ours == pytest.approx(np.mean(list(expected.values())), abs=0.5)
