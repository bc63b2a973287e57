"""Weather: snow, frost, fog, and drops on the lens."""

from __future__ import annotations

from typing import Any

import numpy as np

from acclimate.corruptions.arrays import (
    Generators,
    Pixels,
    Singles,
    Values,
    draw,
    load_extra,
    to_pixels,
    to_singles,
)
from acclimate.corruptions.blur import smooth
from acclimate.corruptions.frost import load_textures
from acclimate.corruptions.sampling import blur_along, zoom_matrix

#: What OpenCV takes for the brightness of red, green and blue.
_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_WATER = np.array([175, 238, 238]) / 255.0
_MUD = np.array([63, 42, 20]) / 255.0

Snow = tuple[float, float, float, float, int, float, float]
Spatter = tuple[float, float, float, float, float, bool]


def snow(pixels: Pixels, snow: Snow, generators: Generators) -> Pixels:
    """Whiten the image and let flakes fall, each seen twice."""
    mean, deviation, zoom, threshold, radius, sigma, share = snow
    height, width = pixels.shape[1:3]
    flakes = mean + deviation * draw("standard_normal", (height, width), generators)
    angles = np.array([generator.uniform(-135, -45) for generator in generators])
    flakes = zoom_matrix(height, zoom) @ flakes @ zoom_matrix(width, zoom).T
    flakes[flakes < threshold] = 0
    streaks = blur_along(to_pixels(flakes)[..., None], radius, sigma, angles) / 255.0
    x = to_singles(pixels)
    grey = x[..., 0] * _GREY[0] + x[..., 1] * _GREY[1] + x[..., 2] * _GREY[2]
    white = np.maximum(x, (grey * np.float32(1.5) + np.float32(0.5))[..., None])
    x = np.float32(share) * x + np.float32(1 - share) * white
    return to_pixels(x + (streaks + streaks[:, ::-1, ::-1]))


def frost(pixels: Pixels, frost: tuple[float, float, float], generators: Generators) -> Pixels:
    """Lay a piece of a picture of frost over the image."""
    image_share, frost_share, scale = frost
    height, width = pixels.shape[1:3]
    textures = load_textures(scale, height, width)
    pieces = np.empty_like(pixels)
    for piece, generator in zip(pieces, generators, strict=True):
        texture = textures[generator.integers(len(textures))]
        top = generator.integers(0, texture.shape[0] - height)
        left = generator.integers(0, texture.shape[1] - width)
        piece[...] = texture[top : top + height, left : left + width]
    mixed = image_share * pixels + frost_share * pieces
    return np.clip(mixed, 0, 255).astype(np.uint8)


def fog(pixels: Pixels, fog: tuple[float, float], generators: Generators) -> Pixels:
    """Add a cloud, and dim to the brightness before."""
    strength, decay = fog
    height, width = pixels.shape[1:3]
    x = pixels / 255.0
    brightest: Values = x.max(axis=(1, 2, 3), keepdims=True)
    clouds = plasma(1 << (max(height, width) - 1).bit_length(), decay, generators)
    foggy = x + strength * clouds[:, :height, :width, None]
    return to_pixels(foggy * brightest / (brightest + strength))


def plasma(size: int, decay: float, generators: Generators) -> Values:
    """Return a fractal cloud in [0, 1] for each generator, by the diamond-square rule.

    The map, a power of two wide, wraps around. Each round halves the distance between known
    points: first the centres of the squares they form, then the middles of the sides.
    """
    field = np.zeros((len(generators), size, size))
    step, wobble = size, 100.0

    def near(total: Values) -> Values:
        # The published program multiplies by the wobble twice, so it shrinks by decay squared.
        draws = [generator.uniform(-wobble, wobble, total.shape[1:]) for generator in generators]
        return total / 4 + wobble * np.reshape(draws, total.shape)

    while step >= 2:
        half = step // 2
        corners = field[:, ::step, ::step]
        down = corners + np.roll(corners, -1, axis=1)
        field[:, half::step, half::step] = near(down + np.roll(down, -1, axis=2))
        centres = field[:, half::step, half::step]
        across = corners + np.roll(corners, -1, axis=2)
        field[:, ::step, half::step] = near(centres + np.roll(centres, 1, axis=1) + across)
        field[:, half::step, ::step] = near(centres + np.roll(centres, 1, axis=2) + down)
        step, wobble = half, wobble / decay
    lowest: Values = field.min(axis=(1, 2), keepdims=True)
    highest: Values = field.max(axis=(1, 2), keepdims=True)
    return (field - lowest) / (highest - lowest)


def spatter(pixels: Pixels, spatter: Spatter, generators: Generators) -> Pixels:
    """Splash water or mud on the lens."""
    mean, deviation, sigma, threshold, last, mud = spatter
    liquid = mean + deviation * draw("standard_normal", pixels.shape[1:3], generators)
    liquid = smooth(liquid, sigma, "spatter")
    liquid[liquid < threshold] = 0
    x = to_singles(pixels)
    if mud:
        mask = smooth((liquid > threshold).astype(np.float32), last, "spatter")[..., None]
        mask[mask < 0.8] = 0
        return to_pixels(x * (1 - mask) + _MUD * mask)
    drops = np.stack([_drops(layer) for layer in (liquid * 255).astype(np.uint8)])
    return to_pixels(x + last * drops[..., None] * _WATER)


def _drops(layer: Any) -> Singles:
    """Return how brightly water on the lens shines, from 0 to 1: most along its edges."""
    cv2 = load_extra("cv2", "spatter")
    distance = cv2.distanceTransform(255 - cv2.Canny(layer, 50, 150), cv2.DIST_L2, 5)
    _, distance = cv2.threshold(distance, 20, 20, cv2.THRESH_TRUNC)
    relief = cv2.equalizeHist(cv2.blur(distance, (3, 3)).astype(np.uint8))
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    relief = cv2.filter2D(relief, cv2.CV_8U, emboss)
    shine = layer * cv2.blur(relief, (3, 3)).astype(np.float32)
    # A lens without a drop stays as it is.
    return np.asarray(shine / max(float(shine.max()), 1.0), dtype=np.float32)
