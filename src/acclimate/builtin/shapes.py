"""The ten outlines of the built-in task as signed distances.

Each function takes coordinates `u`, `v` of shape (n, height, width), in which the object is about
one unit in radius, and `form`, one number in [0, 1) for each image that varies the proportions.
It returns a distance to the outline that is negative inside. Distances need to be right near the
outline only, so corners are made by the minimum and maximum of half-planes and discs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from acclimate.functional.rng import FloatArray

Outline = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


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
