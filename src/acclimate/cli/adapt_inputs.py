"""What `acclimate adapt` looks at before it begins: which images, and whether names fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from acclimate.cli.terminal import get_console, printable
from acclimate.errors import BadInput

if TYPE_CHECKING:
    from acclimate.bench.predictions import PredictionFile


def find_images_folder(folder: Path) -> Path:
    """Return where the images are: beside masks, the folder `images`; else the folder itself.

    Raises:
        BadInput: There are masks, and it cannot be determined which images are meant.
    """
    from acclimate.data import SETS
    from acclimate.data.masks import MaskSet, guess_set

    layout = guess_set(folder)
    if layout is None:
        return folder
    images = folder / "images"
    if layout == "mask-folder" and images.is_dir():
        text = f"note: {folder} has images and masks: only those in {images} are predicted."
        get_console(stderr=True).print(printable(text), style="yellow", soft_wrap=True)
        return images
    if layout == "cityscapes" and not (folder / "gtFine").is_dir():
        return folder
    entry = SETS[layout]
    paths = []
    if isinstance(entry, MaskSet):
        splits = entry.layout.list_splits(folder, entry.splits)
        paths = [folder / entry.layout.images.format(split=split) for split in splits]
    named = f": {' or '.join(map(str, paths))}" if paths else " alone"
    raise BadInput(
        "wrong_layout",
        f"Expected a folder with only images; {folder} also contains masks, which would be "
        f"predicted as images. Pass the folder of the images{named}.",
        path=folder,
    )


def list_beside(file: PredictionFile) -> dict[str, Path]:
    """Return what is written beside the output while the work goes on, by what it is."""
    beside = (file.part,) if file.state is None else (file.part, file.state)
    return {f"The file {path.name}, which is written next to --out,": path for path in beside}


def check_names(names: Sequence[str], file: Path, known: Sequence[str] | None, whose: str) -> None:
    """Refuse names of classes in another order than is known; others may stand for the same.

    Args:
        names: Of the classes, as the file has them.
        file: That of `--classes`.
        known: In the order of the logits; None if it is not.
        whose: Who says so, such as "the artifact was prepared with".

    Raises:
        BadInput: A name is at another place than it should be.
    """
    places = {name: place for place, name in enumerate(known or ())}
    for place, name in enumerate(names):
        if places.get(name, place) != place:
            raise BadInput(
                "class_mismatch",
                f'{whose} the classes {_shorten(known or ())}, where "{name}" has the index '
                f"{places[name]}; in {file} it has the index {place}, so labels would be wrong. "
                "Pass the names in the same order, or remove --classes.",
                found=tuple(names),
                expected=tuple(known or ()),
            )


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
