"""Surfaces of the built-in task: colours, textures and smooth noise for whole batches."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from acclimate.functional.rng import Draws, FloatArray

# Smooth noise is drawn on these coarse grids and interpolated to the size of the image.
_GRIDS = (4, 8)
N_NOISE_DRAWS = sum(grid * grid for grid in _GRIDS)
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


@cache
def _interpolation(size: int, grid: int) -> FloatArray:
    """Return the (size, grid) weights that interpolate a coarse grid smoothly."""
    place = np.linspace(0, grid - 1, size)
    left = np.minimum(place.astype(np.int64), grid - 2)
    share = place - left
    share = share * share * (3 - 2 * share)
    weights = np.zeros((size, grid), dtype=np.float32)
    rows = np.arange(size)
    weights[rows, left] = 1 - share
    weights[rows, left + 1] = share
    return weights


def smooth_noise(draws: FloatArray, size: int, roughness: FloatArray) -> FloatArray:
    """Return noise in about [0, 1] of shape (n, size, size), given draws (n, N_NOISE_DRAWS).

    The roughness is the share of the finer grid, in [0, 1], of shape (n, 1, 1).
    """
    layers, first = [], 0
    for grid in _GRIDS:
        values = draws[:, first : first + grid * grid].reshape(-1, grid, grid)
        first += grid * grid
        weights = _interpolation(size, grid)
        layers.append(weights @ values @ weights.T)
    coarse, fine = layers
    return coarse + roughness * (fine - coarse)


def colour(luma: FloatArray, draws: Draws, saturation: float) -> FloatArray:
    """Return RGB colours of the given luma and a random hue, of shape (n, 3, 1, 1)."""
    hue = draws.between(0.0, 2 * np.pi)
    strength = draws.between(0.0, saturation)
    phases = np.array([0.0, 2 * np.pi / 3, 4 * np.pi / 3], dtype=np.float32)
    chroma = np.cos(hue[:, 0] + phases)
    chroma -= (chroma @ _LUMA)[:, None]
    rgb: FloatArray = np.clip(luma[:, 0] + strength[:, 0] * chroma, 0, 1)
    return rgb[:, :, None, None]


def pattern(
    draws: Draws,
    u: FloatArray,
    v: FloatArray,
    noise: FloatArray,
    wavelength: tuple[float, float],
    shares: npt.ArrayLike,
) -> FloatArray:
    """Return how much of a second colour covers each pixel, in [0, 1].

    Args:
        draws: the random draws of the scene.
        u: horizontal pixel coordinates relative to the surface, of shape (n, height, width).
        v: vertical pixel coordinates.
        noise: smooth noise in [0, 1] for the cloudy kind.
        wavelength: shortest and longest period of stripes and checks in pixels.
        shares: relative frequencies of plain, stripes, checks, clouds and gradient.
    """
    edges = np.cumsum(np.asarray(shares, dtype=np.float64))
    kind = np.searchsorted(edges / edges[-1], draws.between(0.0, 1.0), side="right")
    angle = draws.between(0.0, np.pi)
    frequency = np.float32(2 * np.pi) / draws.between(*wavelength)
    phase = draws.between(0.0, 2 * np.pi)
    along = (np.cos(angle) * u + np.sin(angle) * v) * frequency
    across = (np.cos(angle) * v - np.sin(angle) * u) * frequency
    wave = np.sin(along + phase)
    # A steep slope draws the bars with edges about one pixel wide instead of a soft sine.
    sharpness = 2 / frequency
    stripes = 0.5 + sharpness * wave
    checks = 0.5 + sharpness * wave * np.sin(across + phase)
    clouds = 0.5 + 2 * (noise - 0.5)
    gradient = 0.5 + along / (frequency * 30)
    kinds = [stripes, checks, clouds, gradient]
    chosen = np.select([kind == i for i in range(1, 5)], kinds, np.float32(0))
    share: FloatArray = np.clip(chosen, 0, 1)
    return share
