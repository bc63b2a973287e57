"""Files with a class for every pixel: which image they belong to, reading them, their faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from acclimate.decode import decode_image, read_image_size
from acclimate.errors import BadInput, UnreadableImage
from acclimate.streams.folder import read_classes
from acclimate.streams.images import Pixels, Size, find_images, show_size

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


# Listing ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """An image and the file with the class of every pixel."""

    name: str  # of the image in its set, without the ending; the same on every machine
    image: Path
    mask: Path  # of the same size
    kind: str  # what the mask's name ends in, a key of the ids of its set


@dataclass(frozen=True)
class MaskTree:
    """What lies in a folder of images and masks."""

    base: Path
    classes: tuple[str, ...]
    ids: Mapping[str, Mapping[int, int]]  # by what mask files end in: the class of each value
    splits: dict[str, list[Pair]]  # sorted by name; one split without a name if there are none
    faults: dict[str, list[str]]  # of the listing, one sentence each, by split

    def compare_counts(self, name: str, counts: Mapping[str, int]) -> dict[str, str]:
        """Return a sentence for each split that has not as many pairs as were published."""
        return {
            split: f"The split {split} of {name} has {len(self.splits[split]):,} pairs here, "
            f"{n:,} as published. Results are not exactly comparable with published ones."
            for split, n in counts.items()
            if len(self.splits[split]) != n
        }


@dataclass(frozen=True)
class MaskLayout:
    """Where images and masks are; `{split}` stands for the name of a split.

    Attributes:
        images: Folder of the images.
        masks: Folder of the masks.
        image_ending: What names of images end in, if the masks' differ; the rest is the same.
        ids: By what names of masks end in: the class number of each value. Empty for local folders.
        depth: Number of folders between these and the files in published archives.
    """

    images: str
    masks: str
    image_ending: str = ""
    ids: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    depth: int = 0

    def list_splits(self, base: Path, splits: Iterable[str]) -> list[str]:
        """Return the splits that lie in a folder, whatever is in them; none if it has no splits."""
        if self.ids:
            return [s for s in splits if (base / self.images.format(split=s)).is_dir()]
        return [] if (base / "images").is_dir() else _find_splits(base)

    def tops(self, splits: Iterable[str]) -> dict[str, int]:
        """Return the folders of published archives, and how many names deep their files lie."""
        folders = [each.format(split=s) for s in splits for each in (self.images, self.masks)]
        return {Path(each).parts[0]: len(Path(each).parts) + self.depth for each in folders}


#: The layout of local folders.
OWN_LAYOUT = MaskLayout("{split}/images", "{split}/masks")


def list_masks(
    base: Path,
    layout: MaskLayout,
    splits: Iterable[str] = (),
    classes: Sequence[str] | None = None,
    ignore_label: int = IGNORE,
) -> MaskTree:
    """Return what lies in a folder of images and masks, without judging it.

    `splits` are those that are published; local folders may have any. Without the names of the
    classes, they are read from `classes.txt` in the folder.
    """
    if not 0 <= ignore_label <= 255:
        text = (
            "Expected an ignore label from 0 to 255, the range of 8-bit masks, found "
            f"{ignore_label}."
        )
        raise BadInput("out_of_range", text, option="ignore_label", found=ignore_label)
    if layout.ids and ignore_label != IGNORE:
        text = (
            "The option --ignore-label (ignore_label=) applies only to local folders: the class "
            "ids of this data set are published, and ids without a class are ignored. Remove the "
            "option."
        )
        raise BadInput("not_applicable", text, option="ignore_label")
    names = tuple(_read_classes(base) if classes is None else classes)
    ids = layout.ids or {"": {place: place for place in range(len(names))} | {ignore_label: IGNORE}}
    own = list(splits) if layout.ids else [""] if (base / "images").is_dir() else _find_splits(base)
    tree = MaskTree(base, names, ids, {}, {})
    for split in own:
        folders = [base / x.format(split=split).lstrip("/") for x in (layout.images, layout.masks)]
        faults: list[str] = []
        if layout.image_ending:
            images = _by_stem(folders[0], (layout.image_ending,))
            masks = _by_stem(folders[1], tuple(ids))
            where = folders[1].parent.name
        else:
            images, masks = (_by_name(folder, faults) for folder in folders)
            where = folders[1].name
        prefix = f"{split}/" if split else ""
        tree.splits[split] = [
            Pair(f"{prefix}{name}", path, masks[name], _ending(masks[name], name, layout))
            for name, path in sorted(images.items())
            if name in masks
        ]
        tree.faults[split] = [
            *faults,
            *(
                f"{images[name]} has no mask: expected {name} in {base}, {where}. Add the mask, or "
                "remove the image."
                for name in sorted(images.keys() - masks.keys())
            ),
            *(
                f"{masks[name]} has no image of the same name. Add the image, or remove the mask."
                for name in sorted(masks.keys() - images.keys())
            ),
        ]
    return tree


def _ending(mask: Path, name: str, layout: MaskLayout) -> str:
    """Return the key of the ids of a mask."""
    return mask.name[len(Path(name).name) :] if layout.image_ending else next(iter(layout.ids), "")


def _read_classes(base: Path) -> list[str]:
    """Return the names in `classes.txt`, one on each line, in the order of the class numbers."""
    path = base / CLASSES
    if not path.is_file():
        text = (
            f"{path} is missing. It lists the class names in the order of their indices, one per "
            "line. Create it, or pass the names: --classes FILE, or classes= in Python."
        )
        raise BadInput("not_found", text, path=path)
    return read_classes(path)


def _find_splits(base: Path) -> list[str]:
    return sorted(path.parent.name for path in base.glob("*/images") if path.is_dir())


def _by_stem(folder: Path, endings: Sequence[str]) -> dict[str, Path]:
    """Return files by city and frame; of several endings, the first that is there."""
    found: dict[str, Path] = {}
    for ending in endings:
        for path in folder.glob(f"*/*{ending}"):
            stem = path.relative_to(folder).as_posix().removesuffix(ending)
            found.setdefault(stem, path)
    return found


def _by_name(folder: Path, faults: list[str]) -> dict[str, Path]:
    """Return images by their path without the ending; those that differ in nothing else: faults."""
    found: dict[str, Path] = {}
    for path in sorted(find_images(folder)) if folder.is_dir() else []:
        name = path.relative_to(folder).with_suffix("").as_posix()
        if found.setdefault(name, path) is not path:
            faults.append(
                f"{path} and {found[name].name} differ only in their file extensions, so the file "
                "to use is ambiguous. Remove one of them."
            )
    return found
