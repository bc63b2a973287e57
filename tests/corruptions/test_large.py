"""The constants for large images against the package `imagecorruptions`, where it is installed.

It has its own constants for elastic_transform and its own way with photographs of frost, so these
two are not compared here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from benchmarks.corruption_faithfulness import ks_p_value, spectrum
from PIL import Image

from acclimate.corruptions import apply, sampling
from acclimate.corruptions.constants import CONSTANTS
from acclimate.corruptions.frost import PHOTOGRAPHS, find_photographs

oracle = pytest.importorskip("imagecorruptions", reason="needs imagecorruptions-imaug")
slow = pytest.importorskip("imagecorruptions.corruptions")

pytestmark = [pytest.mark.slow, pytest.mark.data]  # the photographs in the package, and its loops

SEVERITIES = (1, 2, 3, 4, 5)
SIZE = 224
N = 16
Pixels = npt.NDArray[np.uint8]


@pytest.fixture(scope="module")
def images() -> Pixels:
    """Pieces of the photographs of frost: the only natural images at hand."""
    folder = find_photographs()
    assert folder is not None
    draws = np.random.default_rng(0)
    pieces = []
    for place in range(N):
        with Image.open(folder / PHOTOGRAPHS[place % 5]) as photograph:
            whole = np.asarray(photograph.convert("RGB"))
        top, left = (draws.integers(0, side - SIZE) for side in whole.shape[:2])
        pieces.append(whole[top : top + SIZE, left : left + SIZE])
    return np.stack(pieces)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize(
    "name",
    ["gaussian_blur", "defocus_blur", "zoom_blur", "brightness", "contrast", "saturate",
     "pixelate", "jpeg_compression"],
)  # fmt: skip
def test_fixed_corruptions_are_equal(name: str, severity: int, images: Pixels) -> None:
    got = apply(images[:2], name, severity)
    for image, out in zip(images, got, strict=False):
        expected = oracle.corrupt(image, severity=severity, corruption_name=name)
        difference = np.abs(out.astype(float) - expected)
        assert difference.mean() <= 0.05
        assert np.quantile(difference, 0.999) <= 1


@pytest.mark.parametrize("severity", SEVERITIES)
def test_motion_of_one_angle_is_equal(severity: int, images: Pixels) -> None:
    radius, sigma = CONSTANTS[224]["motion_blur"][severity - 1]
    for angle in (-37.0, 8.0, 45.0):
        got = sampling.blur_along(images[:1], radius, sigma, np.array([angle]))[0]
        expected = slow._motion_blur(images[0], radius, sigma, angle)
        # Ours is rounded to 16 bits first.
        short = expected - got
        assert short.min() > -0.5 / 257 - 1e-3
        assert short.max() < 1 + 1e-3


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize(
    "name",
    ["gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "glass_blur",
     "motion_blur", "snow", "fog", "spatter"],
)  # fmt: skip
def test_random_corruptions_are_distributed_alike(name: str, severity: int, images: Pixels) -> None:
    # Draws over even grey, where only the corruption varies, and pieces for those that move.
    if name in ("glass_blur", "motion_blur"):
        pixels = images
    else:
        pixels = np.full((N, SIZE, SIZE, 3), 110, dtype=np.uint8)
    ours = apply(pixels, name, severity, seed=1).astype(float)
    np.random.seed(severity)
    theirs = np.stack(
        [oracle.corrupt(image, severity=severity, corruption_name=name) for image in pixels]
    ).astype(float)
    axes = (1, 2, 3)
    pairs = {what: (of(ours, axis=axes), of(theirs, axis=axes))
             for what, of in (("mean", np.mean), ("std", np.std))}  # fmt: skip
    pairs |= dict(enumerate(zip(spectrum(ours), spectrum(theirs), strict=True)))
    p_values = {what: ks_p_value(a, b) for what, (a, b) in pairs.items()}
    assert min(p_values.values()) > 0.001, p_values
