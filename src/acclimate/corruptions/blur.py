"""Blurs: out of focus, through frosted glass, by motion, by zooming while the shutter is open."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np

from acclimate.corruptions.arrays import Generators, Pixels, Singles, Values, load_extra, to_pixels
from acclimate.corruptions.sampling import blur_along, zoom_matrix

#: Kernels with more weights are left to OpenCV, which multiplies spectra.
_MANY_WEIGHTS = 64
#: Larger images are zoomed one side after the other.
_MANY_PIXELS = 2**17


def gaussian_blur(pixels: Pixels, sigma: float, generators: Generators) -> Pixels:
    """Convolve with a Gaussian, cut off at four times its width."""
    return to_pixels(smooth(pixels / 255.0, sigma, "gaussian_blur"))


def smooth(x: Any, sigma: float, name: str) -> Any:
    """Return images of shape (n, h, w, …) convolved with a Gaussian, the edge repeated."""
    widths = (0, sigma, sigma, 0)[: x.ndim]
    scipy = load_extra("scipy.ndimage", name)
    return scipy.gaussian_filter(x, widths, mode="nearest", truncate=4.0)


def defocus_blur(pixels: Pixels, lens: tuple[float, float], generators: Generators) -> Pixels:
    """Convolve with a disk."""
    kernel = _disk(*lens)
    x = pixels / 255.0
    # Smaller weights are lost when added in double precision.
    weights = np.argwhere(kernel > 1e-17)
    if len(weights) > _MANY_WEIGHTS:
        cv2 = load_extra("cv2", "defocus_blur of large images")
        return to_pixels(np.stack([cv2.filter2D(image, -1, kernel) for image in x]))
    height, width = pixels.shape[1:3]
    middle = len(kernel) // 2
    reach = int(np.abs(weights - middle).max())
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="reflect")
    blurred = np.zeros_like(x)
    for row, column in weights:
        top, left = row - middle + reach, column - middle + reach
        window = padded[:, top : top + height, left : left + width]
        blurred += kernel[row, column] * window
    return to_pixels(blurred)


def _disk(radius: float, alias_sigma: float) -> Singles:
    """Return the blur kernel of a lens: a disk whose jagged edge is smoothed a little.

    In single precision, as in the published program, so that truncation to whole grey levels
    falls the same way.
    """
    reach, n_taps = (8, 3) if radius <= 8 else (ceil(radius), 5)
    places = np.arange(-reach, reach + 1)
    disk = (places[:, None] ** 2 + places**2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    side = n_taps // 2
    taps = np.exp(-(np.arange(-side, side + 1) ** 2) / (2 * alias_sigma**2))
    taps = (taps / taps.sum()).astype(np.float32)
    for _ in range(2):
        padded = np.pad(disk, ((side, side), (0, 0)), mode="reflect")
        total = taps[0] * padded[: len(disk)]
        for place in range(1, n_taps):
            total = total + taps[place] * padded[place : place + len(disk)]
        disk = total.T
    return disk


def motion_blur(pixels: Pixels, motion: tuple[int, float], generators: Generators) -> Pixels:
    """Smear to one side along an angle within 45° of the horizontal."""
    angles = np.array([generator.uniform(-45, 45) for generator in generators])
    return blur_along(pixels, *motion, angles)


def zoom_blur(pixels: Pixels, zooms: tuple[float, ...], generators: Generators) -> Pixels:
    """Average the image and its enlarged centres."""
    n, height, width, n_channels = pixels.shape
    if height * width > _MANY_PIXELS:
        blurred = _zoom_by_sides(pixels, zooms)
    else:
        # One sparse matrix stands for all zooms; images are its columns.
        columns = pixels.transpose(1, 2, 0, 3).reshape(height * width, n * n_channels)
        blurred = _zoom_operator(height, width, zooms) @ columns.astype(np.float64)
        blurred = blurred.reshape(height, width, n, n_channels).transpose(2, 0, 1, 3)
    # Single precision takes the rounding errors off flat places before they are truncated.
    levels: Pixels = blurred.astype(np.float32).astype(np.uint8)
    return levels


@lru_cache(maxsize=8)
def _zoom_operator(height: int, width: int, zooms: tuple[float, ...]) -> Any:
    sparse = load_extra("scipy.sparse", "zoom_blur")
    total = sparse.identity(height * width, format="csr")
    for zoom in zooms:
        lines, columns = _zoom_side(height, zoom), _zoom_side(width, zoom)
        total = total + sparse.kron(lines, columns, format="csr")
    return total / (len(zooms) + 1)


def _zoom_by_sides(pixels: Pixels, zooms: tuple[float, ...]) -> Values:
    """Return the average for large images, whose operator would take gigabytes."""
    height, width, n_channels = pixels.shape[1:]
    x = pixels.astype(np.float64)
    total = x.copy()
    for image, target in zip(x, total, strict=True):
        for zoom in zooms:
            tall = _zoom_side(height, zoom) @ image.reshape(height, -1)
            flat = tall.reshape(height, width, n_channels).transpose(1, 0, 2).reshape(width, -1)
            wide = _zoom_side(width, zoom) @ flat
            target += wide.reshape(width, height, n_channels).transpose(1, 0, 2)
    return total / (len(zooms) + 1)


@lru_cache(maxsize=128)
def _zoom_side(size: int, zoom: float) -> Any:
    return load_extra("scipy.sparse", "zoom_blur").csr_matrix(zoom_matrix(size, zoom))


def glass_blur(pixels: Pixels, glass: tuple[float, int, int], generators: Generators) -> Pixels:
    """Blur, let every pixel take the colour of one nearby, and blur again."""
    sigma, reach, n_rounds = glass
    x = (smooth(pixels / 255.0, sigma, "glass_blur") * 255).astype(np.uint8)
    n, height, width, n_channels = x.shape
    # Row by row from the bottom right to the top left, as offsets into the image.
    rows, columns = (np.arange(size - reach, reach, -1) for size in (height, width))
    places = (rows[:, None] * width + columns).ravel()
    # Where each pixel of each image comes from. Images are the last axis: a step reads and
    # writes one line.
    source = np.repeat(np.arange(height * width)[:, None], n, axis=1)
    flat, images = source.ravel(), np.arange(n)
    for _ in range(n_rounds):
        shifts = np.empty((len(places), n), dtype=np.int64)
        for i, generator in enumerate(generators):
            right, down = generator.integers(-reach, reach, (len(places), 2)).T
            shifts[:, i] = down * width + right
        shifts += places[:, None]
        shifts *= n
        shifts += images
        # One after the other: a pixel may take what another took before.
        for place, taken in zip(places.tolist(), shifts, strict=True):
            source[place] = flat.take(taken)
    taken = source.T[:, :, None]
    x = np.take_along_axis(x.reshape(n, height * width, n_channels), taken, axis=1)
    x = x.reshape(n, height, width, n_channels)
    shuffled: Values = smooth(x / 255.0, sigma, "glass_blur")
    return to_pixels(shuffled)
