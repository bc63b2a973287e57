"""The built-in task: photographs of toys on a table, made by code.

Ten classes that only the outline distinguishes. Pose, size, proportions, colours, textures, the
background, clutter, light and the camera all vary and say nothing about the class.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from acclimate.builtin.drawing import N_NOISE_DRAWS, OUTLINES, colour, pattern, smooth_noise
from acclimate.errors import check_at_least
from acclimate.functional.rng import Draws, FloatArray, uniform

CLASSES: tuple[str, ...] = tuple(OUTLINES)
SIZE = 32

# Images are made in aligned blocks of this many and cut to what was asked for. Every array then
# has the same shape whatever the batch, so the result is the same to the last bit.
_BLOCK = 100
_LABELS, _SCENE, _NOISE, _CAMERA = range(4)
_N_SCENE_DRAWS = 128
_N_CLUTTER = 4


def render(
    n: int, seed: int, start: int = 0
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return images of shape (n, 32, 32, 3) and their labels.

    Image i depends on (seed, start + i) alone. Every run of ten images that begins at a multiple
    of ten holds each class once, in random order.

    >>> images, labels = render(10, seed=0)
    >>> images.shape, sorted(labels.tolist())
    ((10, 32, 32, 3), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    check_at_least("n", n, 0)
    check_at_least("start", start, 0)
    images = np.empty((n, SIZE, SIZE, 3), dtype=np.uint8)
    labels = np.empty(n, dtype=np.int64)
    for first in range(start - start % _BLOCK, start + n, _BLOCK):
        low, high = max(first, start), min(first + _BLOCK, start + n)
        block_images, block_labels = _render_block(seed, first)
        images[low - start : high - start] = block_images[low - first : high - first]
        labels[low - start : high - start] = block_labels[low - first : high - first]
    return images, labels


def _render_block(seed: int, first: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    index = np.arange(first, first + _BLOCK, dtype=np.int64)
    labels = _block_labels(seed, index)
    draws = Draws(uniform(seed, index, _SCENE, _N_SCENE_DRAWS))
    noise_draws = uniform(seed, index, _NOISE, 2 * N_NOISE_DRAWS)
    noise = [
        smooth_noise(part, SIZE, draws.between(0.1, 0.9))
        for part in np.split(noise_draws, 2, axis=1)
    ]
    centre = np.arange(SIZE, dtype=np.float32) - np.float32((SIZE - 1) / 2)
    y, x = (grid[None] for grid in np.meshgrid(centre, centre, indexing="ij"))

    # Object and background always differ in luma, by little or much.
    ground_luma = draws.between(0.0, 1.0)
    object_luma = (ground_luma + draws.between(0.15, 0.85)) % 1.0
    ground = _surface(draws, ground_luma, x, y, noise[0], (5.0, 20.0), (1, 2, 1, 4, 2))
    scene = _scatter(ground, draws, x, y, _N_CLUTTER, 0.5)
    scene = _place_object(scene, labels, draws, object_luma, x, y, noise[1])
    scene = _scatter(scene, draws, x, y, 1, 0.3)
    return _photograph(scene, draws, x, y, uniform(seed, index, _CAMERA, scene[0].size)), labels


def _block_labels(seed: int, index: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    order = uniform(seed, index, _LABELS, 1).reshape(-1, len(CLASSES))
    return np.argsort(order, axis=1, kind="stable").reshape(-1).astype(np.int64)


def _surface(
    draws: Draws,
    luma: FloatArray,
    u: FloatArray,
    v: FloatArray,
    noise: FloatArray,
    wavelength: tuple[float, float],
    shares: npt.ArrayLike,
) -> FloatArray:
    """Return a textured surface of two colours near the given luma, of shape (n, 3, 32, 32)."""
    first = colour(0.08 + 0.84 * luma, draws, 0.35)
    second = colour(0.08 + 0.84 * np.clip(luma + draws.between(-0.2, 0.2), 0, 1), draws, 0.35)
    share = pattern(draws, u, v, noise, wavelength, shares)[:, None]
    return first + share * (second - first)


def _paint(scene: FloatArray, cover: FloatArray, paint: FloatArray) -> FloatArray:
    painted = paint - scene
    painted *= cover[:, None]
    painted += scene
    return painted


def _scatter(
    scene: FloatArray, draws: Draws, x: FloatArray, y: FloatArray, n: int, probability: float
) -> FloatArray:
    """Strew blobs and sticks over the scene, in place, each there with the given probability."""
    for _ in range(n):
        # All is drawn for every image, so that what follows does not depend on what is there.
        there = draws.chance(probability)[:, 0, 0] > 0
        angle = draws.between(0.0, np.pi)[there]
        dx = x - draws.between(-16.0, 16.0)[there]
        dy = y - draws.between(-16.0, 16.0)[there]
        thickness = draws.between(0.7, 2.2)[there]
        is_stick = draws.chance(0.35)[there]
        length = thickness * (1 + is_stick * draws.between(2.0, 8.0)[there])
        paint = colour(draws.between(0.1, 0.9), draws, 0.35)[there]
        along = np.cos(angle) * dx + np.sin(angle) * dy
        across = np.cos(angle) * dy - np.sin(angle) * dx
        distance = np.sqrt((along / length) ** 2 + (across / thickness) ** 2) - 1
        cover = np.clip(0.5 - distance * thickness, 0, 1)
        scene[there] = _paint(scene[there], cover, paint)
    return scene


def _place_object(
    scene: FloatArray,
    labels: npt.NDArray[np.int64],
    draws: Draws,
    luma: FloatArray,
    x: FloatArray,
    y: FloatArray,
    noise: FloatArray,
) -> FloatArray:
    """Put the labelled object with its shadow and rounded edge into the scene."""
    radius = draws.between(6.0, 10.5)
    stretch = np.exp(draws.between(-0.22, 0.22))
    shear = draws.between(-0.2, 0.2)
    angle = draws.between(0.0, 2 * np.pi)
    room = np.minimum(15.5 - 0.85 * radius, 6.0)
    dx, dy = x - room * draws.between(-1.0, 1.0), y - room * draws.between(-1.0, 1.0)
    form = draws.between(0.0, 1.0)
    light = draws.between(0.0, 2 * np.pi)
    light_x, light_y = np.cos(light), np.sin(light)

    def distance(dx: FloatArray, dy: FloatArray) -> FloatArray:
        u = (np.cos(angle) * dx + np.sin(angle) * dy) / (radius * stretch)
        v = (np.cos(angle) * dy - np.sin(angle) * dx) * stretch / radius
        u = u + shear * v
        result = np.empty_like(u)
        for label, outline in enumerate(OUTLINES.values()):
            of_class = labels == label
            result[of_class] = outline(u[of_class], v[of_class], form[of_class])
        return result * radius

    fall = draws.between(1.0, 3.0)
    shadow = distance(dx + fall * light_x, dy + fall * light_y)
    depth = draws.between(0.0, 0.6)
    scene = scene * (1 - depth * np.clip(0.5 - shadow / 3, 0, 1))[:, None]

    outside = distance(dx, dy)
    paint = _surface(draws, luma, dx, dy, noise, (4.0, 12.0), (3, 2, 1, 2, 2))
    # The edge is lit where it faces the light, over a band a few pixels wide.
    slope_y, slope_x = np.gradient(outside, axis=(1, 2))
    band = np.clip(1 + outside / draws.between(1.0, 4.0), 0, 1)
    relief = draws.between(0.0, 0.35) * band * (slope_x * light_x + slope_y * light_y)
    return _paint(scene, np.clip(0.5 - outside, 0, 1), paint * (1 + relief)[:, None])


def _photograph(
    scene: FloatArray, draws: Draws, x: FloatArray, y: FloatArray, grain: FloatArray
) -> npt.NDArray[np.uint8]:
    """Take the picture: uneven light, a slightly soft lens and a little sensor noise."""
    angle = draws.between(0.0, 2 * np.pi)
    slant = draws.between(0.0, 0.3) * (np.cos(angle) * x + np.sin(angle) * y) / 16
    scene = scene * (draws.between(0.85, 1.1) * (1 + slant))[:, None]
    side = draws.between(0.0, 0.08)[:, None]
    for axis in (2, 3):
        padded = np.pad(scene, [(1, 1) if a == axis else (0, 0) for a in range(4)], mode="edge")
        before = padded[:, :, :-2] if axis == 2 else padded[:, :, :, :-2]
        after = padded[:, :, 2:] if axis == 2 else padded[:, :, :, 2:]
        scene = scene + side * (before + after - 2 * scene)
    strength = draws.between(0.0, 0.01)[:, None]
    scene = scene + strength * (grain.reshape(scene.shape) - 0.5)
    pixels = np.clip(scene * 255 + 0.5, 0, 255).astype(np.uint8)
    return pixels.transpose(0, 2, 3, 1)
