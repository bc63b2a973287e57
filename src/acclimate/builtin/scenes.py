"""The built-in task with a class for every pixel: several toys on a table, made by code.

Every kind of toy has colours of its own, which vary, so that a net of a few layers can learn them.
Pixels on an outline have no class: their label is 255.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from acclimate.builtin.drawing import N_NOISE_DRAWS, OUTLINES, smooth_noise
from acclimate.errors import check_at_least
from acclimate.functional.rng import Draws, FloatArray, uniform

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

#: Names in the order of the class numbers, and their colours in pictures.
SCENE_CLASSES = ("table", "disc", "square", "star", "heart")
SCENE_PALETTE = ((90, 90, 90), (220, 60, 50), (60, 110, 220), (240, 200, 40), (60, 180, 90))

#: Height and width.
SCENE_SIZE = (48, 64)

#: Each split is an endless sequence of its own.
SCENE_SPLITS = {"train": 2001, "val": 2002, "test": 2003}

_IGNORE = 255
_N_TOYS = 4
_N_DRAWS = 12 * _N_TOYS + 8
_SCENE, _NOISE, _GRAIN = range(3)
# Red, green and blue of the kinds of toys, around which their colours are drawn.
_COLOURS = np.array(
    [[0.8, 0.25, 0.2], [0.2, 0.4, 0.8], [0.85, 0.75, 0.2], [0.2, 0.65, 0.35]], np.float32
)


def render_scenes(n: int, seed: int, start: int = 0) -> tuple[Pixels, Labels]:
    """Return images of shape (n, 48, 64, 3) and their labels of shape (n, 48, 64).

    Image i depends on (seed, start + i) alone.

    >>> images, labels = render_scenes(4, seed=0)
    >>> images.shape, sorted(set(np.unique(labels).tolist()) - {255})
    ((4, 48, 64, 3), [0, 1, 2, 3, 4])
    """
    check_at_least("n", n, 1)
    check_at_least("start", start, 0)
    height, width = SCENE_SIZE
    index = np.arange(start, start + n, dtype=np.int64)
    draws = Draws(uniform(seed, index, _SCENE, _N_DRAWS))
    noise = smooth_noise(
        uniform(seed, index, _NOISE, N_NOISE_DRAWS), width, draws.between(0.2, 0.8)
    )[:, :height]
    y, x = (
        grid[None].astype(np.float32)
        for grid in np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    )
    ground = draws.between(0.35, 0.65) + 0.25 * (noise - 0.5)
    tint = np.stack([draws.between(-0.05, 0.05) for _ in range(3)], axis=1)
    scene = ground[:, None] + tint
    labels = np.zeros((n, height, width), np.int64)
    for _ in range(_N_TOYS):
        scene, labels = _place(scene, labels, draws, x, y)
    light = draws.between(0.85, 1.15)[:, None]
    grain = uniform(seed, index, _GRAIN, 3 * height * width).reshape(scene.shape)
    scene = scene * light + 0.06 * (grain - 0.5)
    pixels = np.clip(scene * 255 + 0.5, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), labels


def _place(
    scene: FloatArray, labels: Labels, draws: Draws, x: FloatArray, y: FloatArray
) -> tuple[FloatArray, Labels]:
    """Put one toy into every scene, over what is there."""
    kind = (draws.between(0.0, 1.0)[:, 0, 0] * len(_COLOURS)).astype(np.int64)
    radius, angle = draws.between(6.0, 11.0), draws.between(0.0, 2 * np.pi)
    dx, dy = x - draws.between(4.0, 60.0), y - draws.between(4.0, 44.0)
    form = draws.between(0.0, 1.0)
    u = (np.cos(angle) * dx + np.sin(angle) * dy) / radius
    v = (np.cos(angle) * dy - np.sin(angle) * dx) / radius
    outside = np.empty_like(u)
    for number, name in enumerate(SCENE_CLASSES[1:]):
        own = kind == number
        outside[own] = OUTLINES[name](u[own], v[own], form[own])
    outside = outside * radius
    colour = _COLOURS[kind][:, :, None, None]
    colour = colour + np.stack([draws.between(-0.12, 0.12) for _ in range(3)], axis=1)
    cover = np.clip(0.5 - outside, 0, 1)[:, None]
    painted = scene + cover * (colour - scene)
    marked = np.where(outside < -0.5, 1 + kind[:, None, None], labels)
    return painted, np.where(np.abs(outside) <= 0.5, _IGNORE, marked)
