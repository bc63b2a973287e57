"""What the pictures of the built-in tasks are made of: textures, and ten outlines.

An outline is a signed distance that is negative inside. It takes coordinates `u`, `v` of shape
(n, height, width), in which the object is about one unit in radius, and `form`, one number in
[0, 1) for each image that varies the proportions. Distances need to be right near the outline only,
so corners are made by the minimum and maximum of half-planes and discs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from acclimate.functional.rng import Draws, FloatArray

Outline = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]

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


def _radius(u: FloatArray, v: FloatArray) -> FloatArray:
    radius: FloatArray = np.sqrt(u * u + v * v)
    return radius


_mirror: Callable[[FloatArray], FloatArray] = np.abs
_union: Callable[[FloatArray, FloatArray], FloatArray] = np.minimum
_intersection: Callable[[FloatArray, FloatArray], FloatArray] = np.maximum


def _disc(u: FloatArray, v: FloatArray, form: FloatArray) -> FloatArray:
    return _radius(u, v) - (0.82 + 0.1 * form)


def _ring(u: FloatArray, v: FloatArray, form: FloatArray) -> FloatArray:
    return _mirror(_radius(u, v) - 0.7) - (0.14 + 0.1 * form)


def _square(u: FloatArray, v: FloatArray, form: FloatArray) -> FloatArray:
    return _intersection(_mirror(u), _mirror(v)) - (0.72 + 0.08 * form)


def _triangle(u: FloatArray, v: FloatArray, form: FloatArray) -> FloatArray:
    slope = 0.9 + 0.25 * form
    sides = (_mirror(u) + slope * v) / np.sqrt(1 + slope * slope) - 0.42
    return _intersection(sides, -v - 0.48)


def _star(u: FloatArray, v: FloatArray, form: FloatArray) -> FloatArray:
    # Five mirrored wedges: fold the angle into one of them, then a single edge is left.
    wedge = np.float32(2 * np.pi / 5)
    angle = np.arctan2(v, u)
    angle = _mirror(angle - wedge * np.round(angle / wedge))
    radius = _radius(u, v)
    along, across = radius * np.cos(angle), radius * np.sin(angle)
    inner = 0.38 + 0.12 * form
    inner_u, inner_v = inner * np.cos(wedge / 2), inner * np.sin(wedge / 2)
    edge = _radius(1 - inner_u, inner_v)
    distance: FloatArray = ((along - 1) * inner_v + across * (1 - inner_u)) / edge
    return distance


def _cross(u: FloatArray, v: FloatArray, form: FloatArray) -> FloatArray:
    length, thickness = np.float32(0.92), 0.2 + 0.12 * form
    a, b = _mirror(u), _mirror(v)
    return _union(
        _intersection(a - length, b - thickness), _intersection(a - thickness, b - length)
    )


def _heart(u: FloatArray, v: FloatArray, form: FloatArray) -> FloatArray:
    # A square standing on its corner with half a disc on each of the two upper sides.
    diagonal = np.float32(np.sqrt(0.5))
    a, b = diagonal * (u + v) + 0.08, diagonal * (v - u) + 0.08
    half = 0.5 + 0.06 * form
    box = _intersection(_mirror(a), _mirror(b)) - half
    lobes = _union(_radius(a - half, b), _radius(a, b - half)) - half
    return _union(box, lobes)


def _crescent(u: FloatArray, v: FloatArray, form: FloatArray) -> FloatArray:
    bite = _radius(u - (0.38 + 0.16 * form), v) - 0.72
    return _intersection(_radius(u, v) - 0.95, -bite)


def _gear(u: FloatArray, v: FloatArray, form: FloatArray) -> FloatArray:
    teeth = np.clip(2 * np.cos(8 * np.arctan2(v, u)), -1, 1)
    distance: FloatArray = _radius(u, v) - 0.8 - (0.1 + 0.05 * form) * teeth
    return distance


def _flower(u: FloatArray, v: FloatArray, form: FloatArray) -> FloatArray:
    petals = _mirror(np.cos(np.float32(2.5) * np.arctan2(v, u)))
    return _radius(u, v) - 0.55 - (0.36 + 0.08 * form) * petals


OUTLINES: dict[str, Outline] = {
    "disc": _disc,
    "ring": _ring,
    "gear": _gear,
    "flower": _flower,
    "star": _star,
    "triangle": _triangle,
    "square": _square,
    "cross": _cross,
    "heart": _heart,
    "crescent": _crescent,
}
