"""The built-in task in several styles: a small set of domains for tests and quick looks.

The same ten toys as a photograph, as a pencil drawing, as a colour negative and as a woven picture.
Every domain shows other scenes than the rest: what they share is the classes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from acclimate.builtin.render import SIZE, render
from acclimate.functional.rng import FloatArray, uniform

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

_FIRST = 1000  # of the sequences of scenes: those below are the splits of the built-in task
_WEAVE = 7  # stream of the draws for the woven style
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def _sketch(images: Pixels, seed: int) -> Pixels:
    """Return dark lines on white paper where the brightness changes."""
    luma = images @ _LUMA
    down, right = np.zeros_like(luma), np.zeros_like(luma)
    down[:, :-1] = np.diff(luma, axis=1)
    right[:, :, :-1] = np.diff(luma, axis=2)
    ink = np.clip(4 * np.hypot(down, right) - 24, 0, 230)
    return np.repeat((255 - ink).astype(np.uint8)[..., None], 3, axis=3)


def _negative(images: Pixels, seed: int) -> Pixels:
    """Return the photographs with light and dark exchanged, and colours with them."""
    return np.ascontiguousarray((255 - images)[..., [2, 0, 1]])


def _woven(images: Pixels, seed: int) -> Pixels:
    """Return few shades, seen through a weave whose threads differ from image to image."""
    draws = uniform(seed, np.arange(len(images), dtype=np.int64), _WEAVE, 2)
    period = 3 + 3 * draws[:, :1, None]
    angle = np.float32(np.pi) * draws[:, 1:, None]
    place = np.arange(SIZE, dtype=np.float32)
    y, x = (grid[None] for grid in np.meshgrid(place, place, indexing="ij"))
    along: FloatArray = np.cos(angle) * x + np.sin(angle) * y
    threads = 0.7 + 0.3 * np.sin(2 * np.float32(np.pi) * along / period)
    shades = np.round(images / np.float32(64)) * np.float32(60)
    return np.clip(shades * threads[..., None], 0, 255).astype(np.uint8)


#: Makes a style out of photographs and a seed.
STYLES: dict[str, Callable[[Pixels, int], Pixels]] = {
    "negative": _negative,
    "plain": lambda images, seed: images,
    "sketch": _sketch,
    "woven": _woven,
}


def render_style(name: str, n: int, seed: int = 0) -> tuple[Pixels, Labels]:
    """Return images of one style, (n, 32, 32, 3), and their labels.

    Every run of ten images holds each class once. The images depend on the seed alone.

    >>> images, labels = render_style("sketch", 20)
    >>> images.shape, sorted(set(labels.tolist())) == list(range(10))
    ((20, 32, 32, 3), True)
    """
    place = list(STYLES).index(name)
    sequence = _FIRST + seed * len(STYLES) + place
    images, labels = render(n, sequence)
    return STYLES[name](images, sequence), labels
