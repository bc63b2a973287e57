"""The corruptions against the output of their authors' program, where it is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.corruption_faithfulness import (
    CLEAN,
    CORRUPTED,
    ERRORS,
    FIXED,
    RANDOM,
    compare_distributions,
    compare_pixels,
    ks_p_value,
    measure_error,
    read_errors,
    read_images,
)

from acclimate import data, zoo
from acclimate.corruptions import BENCHMARK, Pixels, apply, sampling
from acclimate.corruptions.frost import find_photographs
from acclimate.errors import AcclimateError
from tests.paths import SHARED

REFERENCE = Path(os.environ.get("ACCLIMATE_REFERENCE", SHARED / "reference"))
WEIGHTS = SHARED / "data" / "weights" / "cifar10-resnet20.safetensors"

Pair = tuple[Pixels, dict[str, Pixels]]


@pytest.fixture(scope="module")
def reference() -> Pair:
    if not all((REFERENCE / name).is_file() for name in (CLEAN, CORRUPTED)):
        pytest.skip(f"no reference images in {REFERENCE}; set ACCLIMATE_REFERENCE to their folder")
    return read_images(REFERENCE)


def need(name: str) -> None:
    if name == "frost" and find_photographs() is None:
        pytest.skip("no photographs of frost: acclimate data get frost")
    if name in ("glass_blur", "zoom_blur", "elastic_transform"):
        pytest.importorskip("scipy", reason="needs acclimate[corruptions]")


def test_the_ks_test_can_tell() -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 500))
    assert ks_p_value(a, b) > 0.01
    assert ks_p_value(a, b + 0.3) < 0.001


def test_the_ks_test_is_that_of_its_definition() -> None:
    special = pytest.importorskip("scipy.special", reason="needs acclimate[corruptions]")
    generator = np.random.default_rng(1)
    for n, shift in ((500, 0.0), (500, 0.2), (300, 0.1)):
        a, b = generator.normal(size=500), generator.normal(size=n) + shift
        size = np.sqrt(500 * n / (500 + n))
        gap = max(abs(np.mean(a <= value) - np.mean(b <= value)) for value in [*a, *b])
        # The limit distribution, at the argument with Stephens' correction for finite samples.
        expected = special.kolmogorov((size + 0.12 + 0.11 / size) * gap)
        assert ks_p_value(a, b) == pytest.approx(expected, rel=1e-9)


@pytest.mark.data
@pytest.mark.parametrize("name", FIXED)
def test_fixed_corruptions_equal_the_authors(name: str, reference: Pair) -> None:
    need(name)
    clean, corrupted = reference
    difference = compare_pixels(clean, corrupted[name], name)
    assert difference["mean"] <= 0.01
    assert difference["largest"] <= 1


@pytest.mark.data
@pytest.mark.parametrize("name", RANDOM)
def test_random_corruptions_are_distributed_like_the_authors(name: str, reference: Pair) -> None:
    need(name)
    clean, corrupted = reference
    p_values = compare_distributions(clean, corrupted[name], name)
    assert min(p_values.values()) > 0.001, p_values


@pytest.mark.data
def test_some_angle_makes_each_motion_of_the_authors(reference: Pair) -> None:
    # The angle is the only thing drawn, and only as many matter as there are sets of pixels read.
    clean, corrupted = reference[0][:30], reference[1]["motion_blur"][:30]
    least = np.full(len(clean), np.inf)
    for angle in np.arange(-45, 45.01, 0.5):
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
    if not (REFERENCE / ERRORS).is_file():
        pytest.skip(f"no {ERRORS} in {REFERENCE}; set ACCLIMATE_REFERENCE to its folder")
    return read_errors(REFERENCE)


def source_error(model: torch.nn.Module, name: str) -> float:
    if name not in _errors:
        try:
            clean = data.load("cifar10")
        except AcclimateError as error:
            if error.code != "not_fetched":
                raise
            pytest.skip(f"needs CIFAR-10 below ACCLIMATE_DATA: {error}")
        spoiled = apply(np.asarray(clean.images), name, 5)
        _errors[name] = measure_error(model, spoiled, clean.labels)
    return _errors[name]


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", BENCHMARK)
def test_the_model_errs_as_on_the_authors(
    name: str, model: torch.nn.Module, expected: dict[str, float]
) -> None:
    need(name)
    assert source_error(model, name) == pytest.approx(expected[name], abs=1.5)


@pytest.mark.slow
@pytest.mark.data
def test_the_model_errs_as_on_the_authors_on_average(
    model: torch.nn.Module, expected: dict[str, float]
) -> None:
    for name in BENCHMARK:
        need(name)
    ours = np.mean([source_error(model, name) for name in BENCHMARK])
    assert ours == pytest.approx(np.mean(list(expected.values())), abs=0.5)
