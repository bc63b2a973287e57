"""One image of each ImageNet class: half of them as source, the other half to be corrupted.

    from acclimate.paper.imagenet_sample import complete_classes, split_sample
    split_sample("imagenet-sample", "sample")             # sample/source, sample/target
    # acclimate data corrupt sample/target --out sample/corrupted
    complete_classes("sample/corrupted", "sample/target")

Class numbers are the places of the folders' names, hence every folder has all classes, though half
of them are empty.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from acclimate.data.layouts import list_corrupted
from acclimate.errors import BadInput

N_CLASSES = 1000


def split_sample(images: str | Path, out: str | Path) -> tuple[Path, Path]:
    """Copy every other class of `images/<wnid>/<image>` to `out/source`, the rest to `out/target`.

    Raises:
        BadInput: Classes are missing.
    """
    root = Path(images)
    classes = _list_folders([root])
    _check(classes, root)
    halves = Path(out) / "source", Path(out) / "target"
    for number, name in enumerate(classes):
        for half in halves:
            (half / name).mkdir(parents=True)
        for image in sorted((root / name).iterdir()):
            shutil.copyfile(image, halves[number % 2] / name / image.name)
    return halves


def complete_classes(corrupted: str | Path, like: str | Path) -> None:
    """Make the class folders of `like` that copies of it lack, as they were empty.

    The copies are `corrupted/<corruption>/<severity>/<wnid>/<image>`.
    """
    names = _list_folders([Path(like)])
    for place in _list_copies(Path(corrupted)):
        for name in names:
            (place / name).mkdir(exist_ok=True)


def check_corrupted(folder: str | Path) -> None:
    """Refuse corrupted images that lack class folders: all class numbers would be wrong.

    Raises:
        BadInput: With how to make them.
    """
    _check(_list_folders(_list_copies(Path(folder))), Path(folder))


def _list_copies(root: Path) -> Iterator[Path]:
    for corruption, severities in list_corrupted(root).items():
        yield from (root / corruption / str(severity) for severity in severities)


def _list_folders(places: Iterable[Path]) -> list[str]:
    return sorted({path.name for place in places for path in place.iterdir() if path.is_dir()})


def _check(classes: list[str], root: Path) -> None:
    if len(classes) != N_CLASSES:
        raise BadInput(
            "count_mismatch",
            f"Expected a folder for each of the {N_CLASSES} classes of ImageNet in {root}, found "
            f"{len(classes)}. Folders may be empty but must exist, because their order defines "
            "the class indices; acclimate.paper.imagenet_sample.complete_classes creates them.",
            expected=N_CLASSES,
            found=len(classes),
        )
