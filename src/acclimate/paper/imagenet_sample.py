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
from pathlib import Path

from acclimate.data.layouts import list_corrupted
from acclimate.errors import BadInput

N_CLASSES = 1000


def split_sample(images: str | Path, out: str | Path) -> tuple[Path, Path]:
    """Copy every other class to `out/source`, the rest to `out/target`, and return both.

    Args:
        images: `images/<wnid>/<image>`, all classes.
        out: Must not hold such folders yet.

    Raises:
        BadInput: Classes are missing.
    """
    root = Path(images)
    classes = sorted(path.name for path in root.iterdir() if path.is_dir())
    _check(classes, root)
    halves = Path(out) / "source", Path(out) / "target"
    for number, name in enumerate(classes):
        for half in halves:
            (half / name).mkdir(parents=True)
        for image in sorted((root / name).iterdir()):
            shutil.copyfile(image, halves[number % 2] / name / image.name)
    return halves


def complete_classes(corrupted: str | Path, like: str | Path) -> None:
    """Make the empty class folders that copies of a folder lack.

    Args:
        corrupted: `corrupted/<corruption>/<severity>/<wnid>/<image>`.
        like: The folder that it was made from.
    """
    names = sorted(path.name for path in Path(like).iterdir() if path.is_dir())
    for corruption, severities in list_corrupted(Path(corrupted)).items():
        for severity in severities:
            for name in names:
                place = Path(corrupted) / corruption / str(severity) / name
                place.mkdir(exist_ok=True)


def check_corrupted(folder: str | Path) -> None:
    """Refuse corrupted images that lack class folders: all class numbers would be wrong.

    Raises:
        BadInput: With how to make them.
    """
    root = Path(folder)
    found = {
        path.name
        for corruption, severities in list_corrupted(root).items()
        for severity in severities
        for path in (root / corruption / str(severity)).iterdir()
        if path.is_dir()
    }
    _check(sorted(found), root)


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
