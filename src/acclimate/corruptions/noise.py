"""Noise: a draw for each value of the image."""

from __future__ import annotations

import numpy as np

from acclimate.corruptions.arrays import (
    Generators,
    Pixels,
    draw_normal,
    draw_uniform,
    to_pixels,
)


def gaussian_noise(pixels: Pixels, scale: float, generators: Generators) -> Pixels:
    """Add normal noise."""
    noise = draw_normal(pixels.shape[1:], generators)
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
    draws = draw_uniform(pixels.shape[1:], generators)
    spoiled = np.where(draws < amount, np.uint8(0), pixels)
    return np.where(draws < amount / 2, np.uint8(255), spoiled)


def speckle_noise(pixels: Pixels, scale: float, generators: Generators) -> Pixels:
    """Add normal noise in proportion to the value."""
    x = pixels / 255.0
    return to_pixels(x + x * (scale * draw_normal(pixels.shape[1:], generators)))
