"""Small folders of images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from acclimate.data import Batches, open_folder


def write_images(
    root: Path,
    counts: Mapping[str, int],
    size: int | tuple[int, int] = 8,
    seed: int = 0,
    suffix: str = ".png",
) -> Path:
    """Write noise images `root/<folder>/000.png` and so on; return `root`.

    Args:
        root: Created if it does not exist.
        counts: Number of images by folder, such as {"cat": 3, "dog": 2}; "" is `root` itself. A
            folder with 0 images is created empty. Images of a later folder are brighter, so that
            folders which are classes can be told apart.
        size: Side in pixels, or height and width.
        seed: Of the noise.
        suffix: Kind of image file.
    """
    height, width = (size, size) if isinstance(size, int) else size
    draws = np.random.default_rng(seed)
    for number, (folder, n) in enumerate(counts.items()):
        (root / folder).mkdir(parents=True, exist_ok=True)
        low = min(50 * number, 150)
        for index in range(n):
            pixels = draws.integers(low, low + 90, (height, width, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(root / folder / f"{index:03}{suffix}")
    return root


def labelled_batches(
    root: Path, size: Any = None, classes: Any = None, resize: Any = None, batch_size: int = 128
) -> Batches:
    """Return a folder of classes as batches that are shuffled again in every pass."""
    return Batches(open_folder(root, size, classes, resize), batch_size, reshuffle=True)
