"""Reading images between their pixels and beyond their edges, for whole batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil

import numpy as np
import numpy.typing as npt

from acclimate.corruptions.arrays import Pixels, Singles, Values

Places = npt.NDArray[np.int64]


def mirror_at_pixels(places: Places, size: int) -> Places:
    """Return the places inside, mirrored at the outermost pixels: c b | a b c | b a.

    >>> mirror_at_pixels(np.arange(-4, 7), 3).tolist()
    [0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2]
    """
    last = size - 1
    if places.min() < -last or places.max() > 2 * last:  # rare, and division is slow
        places = places % (2 * last)
    inside: Places = last - np.abs(last - np.abs(places))
    return inside


def mirror_between(places: Places, size: int) -> Places:
    """Return the places inside, mirrored at the outer edges of the pixels: b a | a b c | c b.

    >>> mirror_between(np.arange(-4, 7), 3).tolist()
    [2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0]
    """
    if places.min() < -size or places.max() >= 2 * size:
        places = places % (2 * size)
    before = np.where(places < 0, -1 - places, places)
    inside: Places = np.minimum(before, 2 * size - 1 - before)
    return inside


def sample_bilinear(
    x: Singles, rows: Values, columns: Values, mirror: Callable[[Places, int], Places]
) -> Singles:
    """Return images of shape (n, h, w, c) read at places of shape (n, h, w), each image its own."""
    n, height, width, n_channels = x.shape
    top, left = np.floor(rows), np.floor(columns)
    down, right = (rows - top).astype(np.float32), (columns - left).astype(np.float32)
    y, z = top.astype(np.int64), left.astype(np.int64)
    first = np.arange(n).reshape(n, 1, 1) * (height * width)
    above, below = (mirror(line, height) * width + first for line in (y, y + 1))
    before, after = mirror(z, width), mirror(z + 1, width)
    corners = (above + before, above + after, below + before, below + after)
    out = np.empty_like(x)
    for channel in range(n_channels):
        plane = np.ascontiguousarray(x[..., channel]).ravel()
        a, b, c, d = (plane.take(corner) for corner in corners)
        upper = a + right * (b - a)
        out[..., channel] = upper + down * (c + right * (d - c) - upper)
    return out


@lru_cache(maxsize=4)
def zoom_matrix(size: int, zoom: float) -> Values:
    """Return the square matrix that enlarges the centre of a line by linear interpolation.

    The outermost centres of the pixels that are cut out become those of the enlarged line.
    """
    cut = ceil(size / zoom)
    # Python's round, to even, decides how long the line becomes, as in SciPy.
    n_out = round(cut * zoom)
    spare = (n_out - size) // 2
    places = np.arange(spare, spare + size) * ((cut - 1) / max(1, n_out - 1))
    left = np.minimum(places.astype(np.int64), max(0, cut - 2))
    share = places - left
    matrix = np.zeros((size, size))
    first = (size - cut) // 2
    lines = np.arange(size)
    matrix[lines, first + left] = 1 - share
    matrix[lines, np.minimum(first + left + 1, size - 1)] += share
    return matrix


def blur_along(pixels: Pixels, radius: int, sigma: float, angles: Values) -> Pixels:
    """Return images of shape (n, h, w, c) smeared to one side, each along its own angle.

    As ImageMagick does it: half a Gaussian of 2·radius + 1 taps, read at whole pixels, and the
    edge repeated beyond itself. Angles are in degrees; 0 reads to the right, 90 downwards.
    """
    n, height, width, n_channels = pixels.shape
    taps = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    taps = (taps / taps.sum()).astype(np.float32)
    # Smaller weights are lost when added in single precision.
    taps = taps[: int(np.flatnonzero(taps > 2.0**-26)[-1]) + 1]
    steps = np.arange(len(taps))[:, None]
    turn = np.deg2rad(angles)
    down = np.ceil(steps * np.sin(turn) - 0.5).astype(np.int64)
    right = np.ceil(steps * np.cos(turn) - 0.5).astype(np.int64)
    reach = len(taps)
    sides = ((0, 0), (reach, reach), (reach, reach), (0, 0))
    padded = np.pad(pixels.astype(np.float32), sides, mode="edge")
    # All windows the images can be read through, without copying: a line of one is contiguous.
    image, line, pixel, value = padded.strides
    windows = np.lib.stride_tricks.as_strided(
        padded,
        (n, 2 * reach + 1, 2 * reach + 1, height, width * n_channels),
        (image, line, pixel, line, value),
        writeable=False,
    )
    lines = np.arange(n)
    blurred = np.zeros((n, height, width * n_channels), dtype=np.float32)
    for tap, by_row, by_column in zip(taps, down, right, strict=True):
        seen = windows[lines, reach + by_row, reach + by_column]
        seen *= tap
        blurred += seen
    # Published images were rounded to 16 bits, 257 to a grey level, and then truncated to 8.
    blurred += np.float32(0.5 / 257)
    return blurred.astype(np.uint8).reshape(pixels.shape)
