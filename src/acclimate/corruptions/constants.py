"""The constants of the benchmark, as data, and how they follow the size of the image.

Hendrycks & Dietterich publish two families: 32 (CIFAR-10-C) and 224 (ImageNet-C). They are not
multiples of one another and must not be mixed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: Images whose shorter side is at most this take the constants of the 32 family.
LARGEST_SMALL = 48


def _zooms(*ranges: tuple[float, float]) -> tuple[tuple[float, ...], ...]:
    # As the published program counts, rounding and all: 1 … 1.06 by 0.01 keeps its end, 1 … 1.16
    # does not.
    return tuple(tuple(np.arange(1, end, step).tolist()) for end, step in ranges)


#: By name, one entry a severity: of the family 32, then of the family 224.
_BOTH: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "gaussian_noise": ((0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)),
    "shot_noise": ((500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    "impulse_noise": ((0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27)),
    "speckle_noise": ((0.06, 0.10, 0.12, 0.16, 0.20), (0.15, 0.20, 0.35, 0.45, 0.60)),
    "gaussian_blur": ((0.4, 0.6, 0.7, 0.8, 1.0), (1.0, 2.0, 3.0, 4.0, 6.0)),
    # width of the blur, reach of the exchange, rounds
    "glass_blur": (
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    # radius, width of the smoothing of the edge
    "defocus_blur": (
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)),
        ((3.0, 0.1), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5)),
    ),
    # radius, width
    "motion_blur": (
        ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)),
        ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0)),
    ),
    "zoom_blur": (
        _zooms((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        _zooms((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
    # mean, deviation, zoom, threshold, radius, width, share of the image
    "snow": (
        (
            (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
            (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
        ),
        (
            (0.1, 0.3, 3.0, 0.5, 10, 4.0, 0.8),
            (0.2, 0.3, 2.0, 0.5, 12, 4.0, 0.7),
            (0.55, 0.3, 4.0, 0.9, 12, 8.0, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8.0, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12.0, 0.55),
        ),
    ),
    # weight of the image, weight of the frost
    "frost": (
        ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    ),
    # strength, decay
    "fog": (
        ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)),
        ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)),
    ),
    "brightness": ((0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": ((0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)),
    # factor, addend
    "saturate": (
        ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)),
        ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2)),
    ),
    # displacement, width of its smoothing, reach of the affine map, as parts of the side
    "elastic_transform": (
        (
            (0.0, 0.0, 0.08),
            (0.05, 0.2, 0.07),
            (0.08, 0.06, 0.06),
            (0.1, 0.04, 0.05),
            (0.1, 0.03, 0.03),
        ),
        (
            (2.0, 0.7, 0.1),
            (2.0, 0.08, 0.2),
            (0.05, 0.01, 0.02),
            (0.07, 0.01, 0.02),
            (0.12, 0.01, 0.02),
        ),
    ),
    "pixelate": ((0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25)),
    "jpeg_compression": ((80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
    # mean, deviation, width, threshold, strength of water or width of mud, mud
    "spatter": (
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, False),
            (0.65, 0.1, 0.8, 0.7, 0.5, False),
            (0.65, 0.3, 1.0, 0.69, 0.5, False),
            (0.65, 0.1, 0.7, 0.69, 0.6, True),
            (0.65, 0.1, 0.5, 0.68, 0.6, True),
        ),
        (
            (0.65, 0.3, 4.0, 0.69, 0.6, False),
            (0.65, 0.3, 3.0, 0.68, 0.6, False),
            (0.65, 0.3, 2.0, 0.68, 0.5, False),
            (0.65, 0.3, 1.0, 0.65, 1.5, True),
            (0.67, 0.4, 1.0, 0.65, 1.5, True),
        ),
    ),
}

#: Family, then name, then one entry a severity.
CONSTANTS: dict[int, dict[str, tuple[Any, ...]]] = {
    family: {name: both[place] for name, both in _BOTH.items()}
    for place, family in enumerate((32, 224))
}

#: Side the elastic constants are parts of: 244 is the published program's, not a slip made here.
_ELASTIC_SIDE = {32: 32, 224: 244}

#: What the frost photographs are scaled by.
_PHOTOGRAPH_SCALE = {32: 0.2, 224: 1.0}


def choose_family(height: int, width: int) -> int:
    """Return 32 for images whose shorter side is at most 48, 224 for others."""
    return 32 if min(height, width) <= LARGEST_SMALL else 224


def find_constant(name: str, severity: int, family: int, factor: float = 1.0) -> Any:
    """Return the constant in pixels, for images `factor` times as large as those of the family.

    Widths and displacements are multiplied. Whole radii are rounded and stay at least 1. Shares,
    thresholds, decays, zooms of the image and qualities do not depend on the size; the fog covers
    the image whatever its size. Flakes and frost photographs grow with the image.

    >>> find_constant("motion_blur", 5, 224, factor=0.5)
    (10, 7.5)
    """
    constant = CONSTANTS[family][name][severity - 1]
    match name:
        case "gaussian_blur":
            return constant * factor
        case "glass_blur":
            sigma, reach, rounds = constant
            return sigma * factor, _whole(reach, factor), rounds
        case "defocus_blur":
            radius, alias = constant
            return radius * factor, alias
        case "motion_blur":
            radius, sigma = constant
            return _whole(radius, factor), sigma * factor
        case "snow":
            mean, deviation, zoom, threshold, radius, sigma, share = constant
            flakes = (mean, deviation, max(1.0, zoom * factor), threshold)
            return (*flakes, _whole(radius, factor), sigma * factor, share)
        case "frost":
            return (*constant, _PHOTOGRAPH_SCALE[family] * factor)
        case "elastic_transform":
            return tuple(part * _ELASTIC_SIDE[family] * factor for part in constant)
        case "spatter":
            mean, deviation, sigma, threshold, last, mud = constant
            last = last * factor if mud else last
            return mean, deviation, sigma * factor, threshold, last, mud
    return constant


def _whole(radius: int, factor: float) -> int:
    return max(1, round(radius * factor))
