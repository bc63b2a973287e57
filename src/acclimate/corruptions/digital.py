"""Faults of capture and storage: noise, light, contrast, colour, resolution, compression, glass."""

from __future__ import annotations

import io

import numpy as np

from acclimate.corruptions.arrays import (
    Generators,
    Pixels,
    Values,
    draw,
    load_extra,
    to_pixels,
    to_singles,
)
from acclimate.corruptions.sampling import mirror_at_pixels, mirror_between, sample_bilinear


def gaussian_noise(pixels: Pixels, scale: float, generators: Generators) -> Pixels:
    """Add normal noise."""
    noise = draw("standard_normal", pixels.shape[1:], generators)
    noise *= scale
    noise += pixels / 255.0
    return to_pixels(noise)


def shot_noise(pixels: Pixels, n_photons: float, generators: Generators) -> Pixels:
    """Replace values by counts of photons."""
    expected = pixels / 255.0 * n_photons
    for image, generator in zip(expected, generators, strict=True):
        image[...] = generator.poisson(image)
    return to_pixels(expected / n_photons)


def impulse_noise(pixels: Pixels, amount: float, generators: Generators) -> Pixels:
    """Replace a share of all values, half of them by the lightest, half by the darkest."""
    draws = draw("random", pixels.shape[1:], generators)
    spoiled = np.where(draws < amount, np.uint8(0), pixels)
    return np.where(draws < amount / 2, np.uint8(255), spoiled)


def speckle_noise(pixels: Pixels, scale: float, generators: Generators) -> Pixels:
    """Add normal noise in proportion to the value."""
    x = pixels / 255.0
    return to_pixels(x + x * (scale * draw("standard_normal", pixels.shape[1:], generators)))


def brightness(pixels: Pixels, amount: float, generators: Generators) -> Pixels:
    """Raise the value of HSV."""
    # In HSV all three channels are the value times something of hue and saturation alone, so
    # raising the value scales them; black has no hue and turns grey.
    x = pixels / 255.0
    value: Values = x.max(axis=-1, keepdims=True)
    raised: Values = np.clip(value + amount, 0, 1)
    share: Values = np.divide(x, value, out=np.ones_like(x), where=value > 0)
    return to_pixels(share * raised)


def contrast(pixels: Pixels, factor: float, generators: Generators) -> Pixels:
    """Draw each channel towards its mean."""
    x = pixels / 255.0
    mean: Values = x.mean(axis=(1, 2), keepdims=True)
    return to_pixels((x - mean) * factor + mean)


def saturate(pixels: Pixels, change: tuple[float, float], generators: Generators) -> Pixels:
    """Multiply the saturation of HSV and add to it."""
    # With value and hue kept, a channel is value·(1 − saturation·depth), where the depth, from 0
    # to 1, depends on the hue alone.
    factor, addend = change
    x = pixels / 255.0
    value: Values = x.max(axis=-1, keepdims=True)
    spread: Values = value - x.min(axis=-1, keepdims=True)
    # Grey has no hue: it counts as red, so that an addend turns it reddish, as published.
    red = np.broadcast_to([0.0, 1.0, 1.0], x.shape).copy()
    depth: Values = np.divide(value - x, spread, out=red, where=spread > 0)
    saturation: Values = np.divide(spread, value, out=np.zeros_like(value), where=value > 0)
    changed: Values = np.clip(saturation * factor + addend, 0, 1)
    return to_pixels(value * (1 - changed * depth))


def pixelate(pixels: Pixels, factor: float, generators: Generators) -> Pixels:
    """Shrink by averaging boxes, and enlarge again."""
    from PIL import Image  # the core does without it

    height, width = pixels.shape[1:3]
    small = (max(1, int(width * factor)), max(1, int(height * factor)))
    box = Image.Resampling.BOX
    out = np.empty_like(pixels)
    for image, target in zip(pixels, out, strict=True):
        target[...] = Image.fromarray(image).resize(small, box).resize((width, height), box)
    return out


def jpeg_compression(pixels: Pixels, quality: int, generators: Generators) -> Pixels:
    """Save as JPEG, and read again."""
    from PIL import Image  # the core does without it

    from acclimate.decode import decode_image

    out = np.empty_like(pixels)
    for image, target in zip(pixels, out, strict=True):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        target[...] = decode_image(file.getvalue())
    return out


def elastic_transform(
    pixels: Pixels, warp: tuple[float, float, float], generators: Generators
) -> Pixels:
    """Stretch by a random affine map, then move every pixel by a smooth random field."""
    strength, sigma, reach = warp
    n, height, width = pixels.shape[:3]
    corners = np.empty((n, 3, 2))
    fields = np.empty((n, 2, height, width))
    for i, generator in enumerate(generators):
        corners[i] = generator.uniform(-reach, reach, (3, 2))
        fields[i] = generator.uniform(-1, 1, (2, height, width))
    x = to_singles(pixels)
    # An affine map moves lines of pixels beyond the edge: mirrored there with the edge not
    # repeated, while the field repeats it. Both as published.
    x = sample_bilinear(x, *_affine_places(corners, height, width), mirror_at_pixels)
    if strength > 0:
        smooth = load_extra("scipy.ndimage", "elastic_transform").gaussian_filter
        shifts = smooth(fields, (0, 0, sigma, sigma), mode="reflect", truncate=3) * strength
        rows = shifts[:, 1] + np.arange(height)[:, None]
        x = sample_bilinear(x, rows, shifts[:, 0] + np.arange(width), mirror_between)
    return to_pixels(x)


def _affine_places(moves: Values, height: int, width: int) -> tuple[Values, Values]:
    """Return the rows and columns to read, where a map moves three points as given.

    The points are three corners of a square about the centre.
    """
    half = min(height, width) // 3
    centre = np.array([width // 2, height // 2], dtype=np.float64)
    # Two sides of the square, from its middle corner: that with the larger x and the smaller y.
    origin = centre + np.array([half, -half])
    moved = moves + np.array([centre + half, origin, centre - half])
    down = (moved[:, 0] - moved[:, 1]) / (2 * half)
    right = (moved[:, 1] - moved[:, 2]) / (2 * half)
    # A point origin + a·right + b·down goes to moved[1] + a·right' + b·down': solved for a, b.
    determinant = (right[:, 0] * down[:, 1] - right[:, 1] * down[:, 0])[:, None, None]
    x, y = (
        places - moved[:, 1, axis, None, None]
        for axis, places in enumerate((np.arange(width)[None, None], np.arange(height)[:, None]))
    )
    (right_x, right_y), (down_x, down_y) = (
        (side[:, 0, None, None], side[:, 1, None, None]) for side in (right, down)
    )
    columns = origin[0] + (x * down_y - y * down_x) / determinant
    rows = origin[1] + (right_x * y - right_y * x) / determinant
    return rows, columns
