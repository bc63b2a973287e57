"""Images to train on and to measure the error with. All use of `acclimate.data` is here."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from acclimate.data import LabelledImages, data_root, load
from acclimate.data.catalog import SETS
from acclimate.data.domains import Domain, DomainSet, Part, load_domains
from acclimate.data.masks import IGNORE, LabelledPixels, load_masks
from acclimate.data.masks.loading import find_set
from acclimate.data.masks.tree import list_splits
from acclimate.errors import AcclimateWarning, BadInput
from acclimate.streams.folder import FolderSource
from acclimate.streams.images import read_ahead
from acclimate.training.settings import SegmentationSettings, TrainSettings

__all__ = [
    "IGNORE",
    "ArraySet",
    "Domain",
    "DomainSet",
    "FolderSet",
    "ImageSet",
    "LabelledPixels",
    "Part",
    "load_domains",
    "load_mask_sets",
    "load_sets",
]

#: How many images of the built-in task are made, which has no end: for training and testing.
_N_BUILTIN = {"train": 20_000, "test": 2_000}


class ImageSet(Protocol):
    """Labelled images that can be had in any order.

    Attributes:
        classes: Names in the order of the class numbers.
        description: What a result must say of its data; can be written as JSON.
    """

    classes: tuple[str, ...]
    description: dict[str, Any]

    def __len__(self) -> int:
        """Return the number of images."""

    def batches(self, picks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield uint8 images (batch, 3, height, width) and labels for each row of positions."""


class ArraySet:
    """Images in an array, which may be memory-mapped: only what is asked for is read.

    Args:
        data: As `acclimate.data.load` gives it.
        n: How many of them, the first; None is all.
    """

    def __init__(self, data: LabelledImages, n: int | None = None) -> None:
        if n is not None and n > len(data):
            raise BadInput(
                "out_of_range",
                f"Expected images to be at most {len(data)}, the number of images in the data "
                f"set, found {n}.",
                option="images",
                found=n,
            )
        self._images, self._labels = data.images, data.labels
        self._n = len(data) if n is None else n
        self.classes = data.classes
        self.description = {**data.description, "n": self._n}

    def __len__(self) -> int:
        """Return the number of images."""
        return self._n

    def batches(self, picks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels for each row of positions."""
        for batch in picks:
            rows = batch.numpy()
            pixels = torch.from_numpy(np.ascontiguousarray(self._images[rows]))
            yield pixels.permute(0, 3, 1, 2), torch.from_numpy(self._labels[rows])


class FolderSet:
    """Image files `root/<class>/…`, read by threads one batch ahead.

    Args:
        root: One sub-folder a class.
        size: Height and width the images are brought to; None if all have one size.
        n: How many of them, spread evenly over the sorted listing; None is all.
        classes: Class names in order; the folder names, sorted, if None.
    """

    def __init__(
        self,
        root: Path,
        size: int | None = None,
        n: int | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        folder = FolderSource(root, size, classes=classes)
        total = len(folder.paths)
        if n is not None and n > total:
            raise BadInput(
                "out_of_range",
                f"Expected images to be at most {total}, the number of images in {root}, found "
                f"{n}.",
                option="images",
                found=n,
            )
        kept = range(total) if n is None else [index * total // n for index in range(n)]
        self.classes = tuple(folder.classes)
        self._paths = [folder.paths[index] for index in kept]
        numbers = {name: number for number, name in enumerate(self.classes)}
        names = [path.relative_to(root) for path in self._paths]
        self._labels = torch.tensor([numbers[name.parts[0]] for name in names])
        self._size = folder.size
        listing = "\n".join(
            f"{name.as_posix()}\t{path.stat().st_size}"
            for name, path in zip(names, self._paths, strict=True)
        )
        self.description = {
            "name": root.name,
            "source": "folder",
            "listing_sha256": hashlib.sha256(listing.encode()).hexdigest(),
            "size": list(self._size),
            "n": len(self._paths),
        }
        self._unreadable: set[Path] = set()

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._paths)

    def batches(self, picks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels for each row of positions; unreadable images are left out."""
        groups = [[self._paths[index] for index in batch.tolist()] for batch in picks]
        read = read_ahead(groups, self._size)
        for batch, group, results in zip(picks, groups, read, strict=True):
            pixels, kept = [], []
            for index, path, result in zip(batch.tolist(), group, results, strict=True):
                if isinstance(result, str):
                    self._note(path, result)
                else:
                    pixels.append(result)
                    kept.append(index)
            if not kept:
                raise BadInput(
                    "unreadable_images",
                    f"None of the {len(group)} images of a batch can be read; the first is "
                    f"{group[0]}. Check that the files are complete images.",
                    paths=tuple(group),
                )
            x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
            yield x, self._labels[kept]

    def _note(self, path: Path, reason: str) -> None:
        if path not in self._unreadable:
            self._unreadable.add(path)
            text = f"{path} cannot be read ({reason}) and is left out."
            warnings.warn(AcclimateWarning("unreadable_images", text, paths=(path,)), stacklevel=3)


def load_sets(
    settings: TrainSettings, root: str | Path | None = None
) -> tuple[ImageSet, ImageSet | None]:
    """Return what a run trains on, and what its error is measured on if there is such a split.

    Of a folder these are its sub-folders `train`, and `test` or `val`; or the folder itself, and
    nothing.

    Args:
        settings: Of the run.
        root: Of all data; see `acclimate.data.data_root`.
    """
    name = settings.data
    if name in SETS and SETS[name].kind == "domains":
        raise BadInput(
            "wrong_loader",
            f'The data set "{name}" has several domains. Train with --task domains, and '
            "hold one domain out with --test-domain.",
            name=name,
        )
    if name in SETS and SETS[name].kind != "folder":
        if settings.size is not None:
            raise BadInput(
                "not_applicable",
                f"The option --size applies only to folders of images; {name} has a fixed size. "
                "Remove it.",
                option="size",
            )
        if SETS[name].kind == "made":
            n = settings.images or _N_BUILTIN["train"]
            return (
                ArraySet(load(name, "train", root, n=n)),
                ArraySet(load(name, "test", root, n=_N_BUILTIN["test"])),
            )
        if "train" not in SETS[name].splits:
            able = ", ".join(sorted(key for key, entry in SETS.items() if "train" in entry.splits))
            raise BadInput(
                "no_training_images",
                f'The data set "{name}" has no training images, only a test split. Train on '
                f"{able}, builtin or a folder.",
                name=name,
            )
        return ArraySet(load(name, "train", root), settings.images), ArraySet(load(name, root=root))
    folder = data_root(root) / name if name in SETS else Path(name)
    train = folder / "train" if (folder / "train").is_dir() else folder
    if not train.is_dir():
        raise BadInput(
            "not_found",
            f"The folder {train} does not exist. Pass the folder itself as --data DIR.",
            path=train,
        )
    source = FolderSet(train, settings.size, settings.images)
    if train == folder:
        return source, None
    tests = [folder / split for split in ("test", "val") if (folder / split).is_dir()]
    return source, FolderSet(tests[0], settings.size, None, source.classes) if tests else None


def load_mask_sets(
    settings: SegmentationSettings, root: str | Path | None = None
) -> tuple[LabelledPixels, LabelledPixels]:
    """Return images with masks to train on, and for validation.

    Raises:
        BadInput: A folder does not have both splits; the message says how to make them.
    """
    if settings.data != "builtin-scenes":
        spec, base = find_set(settings.data, data_root(root))
        there = list_splits(base, spec)
        if not spec.splits and not {"train", "val"} <= set(there):
            raise BadInput(
                "wrong_layout",
                f"Expected the splits train and val in {base}, each with images and masks (val is "
                f"used for validation), found {', '.join(there) or 'no splits'}. Put the training "
                f"pairs into {base / 'train'}, and some others, such as a tenth of all, into "
                f"{base / 'val' / 'images'} and {base / 'val' / 'masks'}.",
                path=base,
            )
    form: dict[str, Any] = {"size": settings.size, "ignore_label": settings.ignore_label}
    train = load_masks(settings.data, "train", root, n=settings.images, **form)
    return train, load_masks(settings.data, "val", root, **form)
