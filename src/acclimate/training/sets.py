"""Images to train on and to measure the error with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from acclimate.data import SETS, ImageStore, data_root, load, open_folder
from acclimate.data.datasets import find_set
from acclimate.data.masks import MaskSet
from acclimate.data.stores import list_content
from acclimate.errors import BadInput, refuse_value
from acclimate.training.settings import SegmentationSettings, TrainSettings

#: How many images of the built-in task are made, which has no end: for training and testing.
_N_BUILTIN = {"train": 20_000, "test": 2_000}


def load_sets(
    settings: TrainSettings, root: str | Path | None = None
) -> tuple[ImageStore, ImageStore | None]:
    """Return what a run trains on, and what its error is measured on if there is such a split.

    Of a folder these are its sub-folders `train`, and `test` or `val`; or the folder itself, and
    nothing.
    """
    name = settings.data
    entry = SETS.get(name)
    if entry is not None and entry.has_domains:
        raise BadInput(
            "wrong_loader",
            f'The data set "{name}" has several domains. Train with --task domains, and '
            "hold one domain out with --test-domain.",
            name=name,
        )
    if entry is not None and (not entry.is_files or entry.has_masks):
        if settings.size is not None:
            raise BadInput(
                "not_applicable",
                f"The option --size applies only to folders of images; {name} has a fixed size. "
                "Remove it.",
                option="size",
            )
        if entry.is_generated and not entry.has_masks:
            n = settings.images or _N_BUILTIN["train"]
            return load(name, "train", root, n=n), load(name, "test", root, n=_N_BUILTIN["test"])
        if not entry.can_train:
            able = ", ".join(sorted(key for key, other in SETS.items() if other.can_train))
            raise BadInput(
                "no_training_images",
                f'The data set "{name}" has no training images, only a test split. Train on '
                f"{able}, builtin or a folder.",
                name=name,
            )
        images = load(name, "train", root)
        _check_number(settings.images, len(images), "the data set")
        return images.first(settings.images), load(name, "test", root)
    folder = data_root(root) / name if entry is not None else Path(name)
    train = folder / "train" if (folder / "train").is_dir() else folder
    if not train.is_dir():
        raise BadInput(
            "not_found",
            f"The folder {train} does not exist. Pass the folder itself as --data DIR.",
            path=train,
        )
    source = _open(train, settings.size, settings.images)
    if train == folder:
        return source, None
    tests = [folder / split for split in ("test", "val") if (folder / split).is_dir()]
    return source, _open(tests[0], settings.size, None, source.classes) if tests else None


def load_mask_sets(
    settings: SegmentationSettings, root: str | Path | None = None
) -> tuple[ImageStore, ImageStore]:
    """Return images with masks to train on, and for validation."""
    entry, path = find_set(settings.data)
    if isinstance(entry, MaskSet) and entry.is_own:
        base = entry.base(data_root(root), path)
        there = entry.layout.list_splits(base, ())
        if not {"train", "val"} <= set(there):
            raise BadInput(
                "wrong_layout",
                f"Expected the splits train and val in {base}, each with images and masks (val is "
                f"used for validation), found {', '.join(there) or 'no splits'}. Put the training "
                f"pairs into {base / 'train'}, and some others, such as a tenth of all, into "
                f"{base / 'val' / 'images'} and {base / 'val' / 'masks'}.",
                path=base,
            )
    form: dict[str, Any] = {"size": settings.size, "ignore_label": settings.ignore_label}
    train = load(settings.data, "train", root, n=settings.images, **form)
    return train, load(settings.data, "val", root, **form)


def _open(
    root: Path, size: int | None, n: int | None, classes: Sequence[str] | None = None
) -> ImageStore:
    whole = open_folder(root, size, classes)
    _check_number(n, len(whole), str(root))
    images = whole.first(n)
    about = {
        "name": root.name,
        "source": "folder",
        "listing_sha256": list_content(images),
        "size": list(images.size),
        "n": len(images),
    }
    return replace(images, description=about)


def _check_number(n: int | None, total: int, where: str) -> None:
    if n is not None and n > total:
        refuse_value("images", n, f"at most {total}, the number of images in {where}")
