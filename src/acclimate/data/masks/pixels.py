"""Reading one image and its mask, and saying what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from acclimate.data.masks.specs import UNKNOWN, Table
from acclimate.data.masks.tree import Pair
from acclimate.decode import decode_image, read_image_size
from acclimate.errors import UnreadableImage
from acclimate.streams.images import Pixels, Size, show_size, try_read

Mask = npt.NDArray[np.int64]

_SHOWN = 8


def read_pair(pair: Pair, table: Table, size: Size) -> tuple[Pixels, Mask] | str:
    """Return an image (height, width, 3) and its class numbers, or what is wrong with them.

    Args:
        pair: The files.
        table: The class number of each value of the mask.
        size: Height and width to bring both to: the image smoothly, the mask pixel by pixel.
    """
    image = try_read(pair.image, size, squash=True)
    if isinstance(image, str):
        return f"{pair.image} cannot be read ({image})."
    mask = read_mask(pair.mask, table, size)
    return mask if isinstance(mask, str) else (image, mask)


def find_size(pair: Pair) -> Size | str:
    """Return height and width from the headers of both files, or what is wrong with them."""
    sizes = []
    for path in (pair.image, pair.mask):
        try:
            sizes.append(read_image_size(path))
        except UnreadableImage as error:
            return f"{path} cannot be read ({error.reason})."
    image, mask = sizes
    if image != mask:
        return (
            f"{pair.mask} has the size {show_size(mask)}, but its image {pair.image.name} has the "
            f"size {show_size(image)}. Create the mask again from the image it belongs to."
        )
    return image


def read_mask(path: Path, table: Table, size: Size) -> Mask | str:
    """Return class numbers (height, width) of a mask file, or what is wrong with it."""
    try:
        image = decode_image(path, rgb=False)
    except UnreadableImage as error:
        return f"{path} cannot be read ({error.reason})."
    if image.mode.startswith("I"):
        return (
            f"{path} has 16 bits or more per pixel; expected 8 bits (class indices up to "
            "255). Save it with 8 bits: Image.fromarray(np.uint8(mask))."
        )
    if image.mode not in ("1", "L", "P"):
        return (
            f"{path} has the image mode {image.mode}; expected one 8-bit class index per "
            "pixel. Convert colours to class indices first."
        )
    nearest = image.resize((size[1], size[0]), Image.Resampling.NEAREST)
    if nearest.mode == "1":  # Pillow's own conversion gives 0 and 255
        values = (np.asarray(nearest.convert("L")) > 0).astype(np.uint8)
    else:
        values = np.asarray(nearest, dtype=np.uint8)
    labels = table[values]
    if (labels == UNKNOWN).any():
        return _describe_unknown(path, values[labels == UNKNOWN], table)
    return labels


def _describe_unknown(path: Path, values: Pixels, table: Table) -> str:
    unknown = np.unique(values).tolist()
    known = np.flatnonzero(table != UNKNOWN).tolist()
    more = " …" if len(unknown) > _SHOWN else ""
    ids = ", ".join(map(str, unknown[:_SHOWN]))
    return (
        f"{path} has {len(values):,} pixels with unknown class ids: {ids}{more}. Known ids: "
        f"{_show_ids(known)}. Correct the mask, or add the class; if the id marks unlabelled "
        "pixels, pass --ignore-label (ignore_label= in Python)."
    )


def _show_ids(known: list[int]) -> str:
    """Return numbers for a message, rows of them as first and last.

    >>> _show_ids([0, 1, 2, 255])
    '0–2, 255'
    """
    rows: list[list[int]] = []
    for number in known:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ", ".join(f"{row[0]}–{row[-1]}" if len(row) > 1 else str(row[0]) for row in rows)
