"""Files with a class for every pixel: which image they belong to, reading them, their faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from acclimate.decode import decode_image, read_image_size
from acclimate.errors import BadInput, UnreadableImage
from acclimate.streams.images import Pixels, Size, show_size

#: Label of pixels that count nowhere: neither in losses nor in results.
IGNORE = 255
#: Value of a mask file that stands for no class and not for "ignore" either.
UNKNOWN = -1
#: The file with the class names of a local folder.
CLASSES = "classes.txt"

Colour = tuple[int, int, int]
Table = npt.NDArray[np.int64]
Mask = npt.NDArray[np.int64]
R = TypeVar("R")

_SHOWN = 8
_MODES = ("1", "L", "P")


def refuse(faults: Sequence[str]) -> None:
    """Raise the first faults, if there are any, and say how many more there are."""
    if faults:
        more = f"\n  (+ {len(faults) - _SHOWN} more)" if len(faults) > _SHOWN else ""
        text = "\n  ".join(faults[:_SHOWN]) + more
        raise BadInput("faulty_data", text, faults=tuple(faults))


def keep_good(results: Iterable[R | str]) -> list[R]:
    """Return what was read, or refuse it all if there are sentences about faults among it."""
    found = list(results)
    refuse([each for each in found if isinstance(each, str)])
    return [each for each in found if not isinstance(each, str)]


# Reading ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskFiles:
    """Mask files in the shape of an array (n, height, width) of class numbers."""

    paths: Sequence[Path]
    tables: Sequence[Table]  # for each file, the class number of each value; see `make_table`
    size: Size  # height and width that masks are resized to, pixel by pixel

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all masks."""
        return (len(self.paths), *self.size)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: Any) -> Mask:
        """Read the masks at these positions; `BadInput` names those that cannot be used."""
        return np.stack(keep_good(map(self.try_read, np.atleast_1d(indices).tolist())))

    def select(self, keys: Sequence[int]) -> MaskFiles:
        """Return the masks at these positions."""
        paths, tables = [self.paths[key] for key in keys], [self.tables[key] for key in keys]
        return MaskFiles(paths, tables, self.size)

    def try_read(self, key: int) -> Mask | str:
        """Return a mask, or what is wrong with it."""
        return read_mask(self.paths[key], self.tables[key], self.size)


def find_size(image: Path, mask: Path) -> Size | str:
    """Return height and width from the headers of both files, or what is wrong with them."""
    sizes = []
    for path in (image, mask):
        try:
            sizes.append(read_image_size(path))
        except UnreadableImage as error:
            return f"{path} cannot be read ({error.reason})."
    if sizes[0] != sizes[1]:
        return (
            f"{mask} has the size {show_size(sizes[1])}, but its image {image.name} has the size "
            f"{show_size(sizes[0])}. Create the mask again from the image it belongs to."
        )
    return sizes[0]


def find_sizes(pairs: Iterable[tuple[Path, Path]]) -> list[Size]:
    """Return the size of each image and its mask; `BadInput` names all that differ."""
    return keep_good(find_size(*pair) for pair in pairs)


def read_mask(path: Path, table: Table, size: Size) -> Mask | str:
    """Return class numbers (height, width) of a mask file, or what is wrong with it."""

    def resize(image: Image.Image) -> Image.Image:
        # Images of other modes are refused below.
        is_plain = image.mode in _MODES
        return image.resize((size[1], size[0]), Image.Resampling.NEAREST) if is_plain else image

    try:
        image = decode_image(path, rgb=False, then=resize)
    except UnreadableImage as error:
        return f"{path} cannot be read ({error.reason})."
    if image.mode.startswith("I"):
        return (
            f"{path} has 16 bits or more per pixel; expected 8 bits (class indices up to "
            "255). Save it with 8 bits: Image.fromarray(np.uint8(mask))."
        )
    if image.mode not in _MODES:
        return (
            f"{path} has the image mode {image.mode}; expected one 8-bit class index per "
            "pixel. Convert colours to class indices first."
        )
    if image.mode == "1":  # Pillow's own conversion gives 0 and 255
        values = (np.asarray(image.convert("L")) > 0).astype(np.uint8)
    else:
        values = np.asarray(image, dtype=np.uint8)
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


def make_table(ids: Mapping[int, int]) -> Table:
    """Return the class number of each of the 256 values a mask file can hold.

    >>> make_table({7: 0, 0: IGNORE})[[0, 7, 8]].tolist()
    [255, 0, -1]
    """
    table = np.full(256, UNKNOWN, np.int64)
    table[list(ids)] = list(ids.values())
    return table


def make_palette(n: int) -> tuple[Colour, ...]:
    """Return as many colours that are far from each other: those of Pascal VOC, without black.

    The bits of a number are dealt to red, green and blue in turn, the lowest to their highest.

    >>> make_palette(3)
    ((128, 0, 0), (0, 128, 0), (128, 128, 0))
    """
    if n > 254:
        text = (
            f"Expected at most 254 classes, found {n}: masks have 8 bits per pixel, and 255 is "
            "reserved for ignored pixels."
        )
        raise BadInput("out_of_range", text, option="classes", found=n)
    colours = []
    for number in range(1, n + 1):
        channels = [0, 0, 0]
        for bit in range(8):
            channels[bit % 3] |= ((number >> bit) & 1) << (7 - bit // 3)
        colours.append((channels[0], channels[1], channels[2]))
    return tuple(colours)
