"""What all corruptions share: kinds of arrays, the way between grey levels and [0, 1], extras."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from acclimate.errors import import_extra

Pixels = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Generators = Sequence[np.random.Generator]


def to_pixels(x: npt.NDArray[Any]) -> Pixels:
    """Return values in [0, 1] as grey levels: clipped, then truncated as in the published data."""
    levels: Pixels = (np.clip(x, 0, 1) * 255).astype(np.uint8)
    return levels


def to_singles(pixels: Pixels) -> Singles:
    """Return grey levels as values in [0, 1], in single precision."""
    x: Singles = np.divide(pixels, 255, dtype=np.float32)
    return x


def draw(kind: str, shape: tuple[int, ...], generators: Generators) -> Values:
    """Return an array of that shape from each generator, by its method `random` or another."""
    draws = np.empty((len(generators), *shape))
    for row, generator in zip(draws, generators, strict=True):
        getattr(generator, kind)(out=row)
    return draws


def load_extra(module: str, name: str) -> Any:
    """Return a module of the extra `corruptions`, which the named corruption needs."""
    import_extra(module.partition(".")[0], name, "corruptions")
    return import_module(module)
