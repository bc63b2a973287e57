"""Small sets with masks in the published layouts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

SIZE = (16, 24)
COUNTS = {"train": 3, "val": 2, "test": 2}


def write_pair(
    image: Path, mask: Path, values: npt.NDArray[np.uint8], draws: np.random.Generator
) -> None:
    for path in (image, mask):
        path.parent.mkdir(parents=True, exist_ok=True)
    pixels = draws.integers(0, 256, (*values.shape, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(image)
    Image.fromarray(values).save(mask)


def make_values(draws: np.random.Generator, ids: list[int]) -> npt.NDArray[np.uint8]:
    return draws.choice(ids, SIZE).astype(np.uint8)


def make_uneven(base: Path) -> None:
    """Give the images of a folder of one's own two sizes, and its masks 99 for no label."""
    for path in base.rglob("masks/a/*.png"):
        values = np.array(Image.open(path))
        mask = Image.fromarray(np.where(values == 255, 99, values).astype(np.uint8))
        image = base / path.relative_to(base).as_posix().replace("masks", "images")
        size = (24, 16) if path.stem == "0" else (30, 20)
        mask.resize(size, Image.Resampling.NEAREST).save(path)
        Image.open(image).resize(size).save(image)


def about(paths: Sequence[Path], *facts: str) -> Callable[[Sequence[str]], bool]:
    """Ask whether faults are those of these files, in this order, and each states all facts."""

    def ask(faults: Sequence[str]) -> bool:
        return len(faults) == len(paths) and all(
            str(path) in fault
            and all(
                re.search(rf"(?<!\w){fact}(?!\w)", fault.replace(str(path), "")) for fact in facts
            )
            for path, fault in zip(paths, faults, strict=True)
        )

    return ask


def make_camvid(base: Path, counts: Mapping[str, int] = COUNTS) -> Path:
    draws = np.random.default_rng(0)
    for split, n in counts.items():
        for number in range(n):
            name = f"{number:04}"
            write_pair(
                base / split / f"{name}.png",
                base / f"{split}annot" / f"{name}.png",
                make_values(draws, list(range(12))),
                draws,
            )
    return base


def make_cityscapes(base: Path, ending: str = "labelIds", ids: range = range(34)) -> Path:
    draws = np.random.default_rng(1)
    for split, cities in {"train": ("aachen", "ulm"), "val": ("lindau",)}.items():
        for city in cities:
            stem = f"{city}_000000_000019"
            write_pair(
                base / "leftImg8bit" / split / city / f"{stem}_leftImg8bit.png",
                base / "gtFine" / split / city / f"{stem}_gtFine_{ending}.png",
                make_values(draws, list(ids)),
                draws,
            )
    return base


def make_folder(base: Path, splits: tuple[str, ...] = ("",), n: int = 3) -> Path:
    draws = np.random.default_rng(2)
    for split in splits:
        for number in range(n):
            write_pair(
                base / split / "images" / "a" / f"{number}.png",
                base / split / "masks" / "a" / f"{number}.png",
                make_values(draws, [0, 1, 2, 255]),
                draws,
            )
    (base / "classes.txt").write_text("one\ntwo\nthree\n")
    return base
