"""Labelled images that can be read in any order: one protocol, of an array or of files.

>>> store = ArrayStore(np.zeros((4, 8, 8, 3), np.uint8), np.array([0, 1, 0, 1]), ("cat", "dog"))
>>> x, y = next(store.batches([[3, 0]]))
>>> x.shape, y.tolist()
(torch.Size([2, 3, 8, 8]), [1, 0])
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from acclimate.data.arrays import Labels, files_sha256, labelled_sha256, text_sha256
from acclimate.data.corruptor import Shift, corrupt_image
from acclimate.data.mask_files import IGNORE, Colour, MaskFiles, keep_good, refuse
from acclimate.data.places import Progress, silent
from acclimate.errors import AcclimateWarning, BadInput, check_at_least, warn
from acclimate.functional.inputs import Normalization
from acclimate.streams.batch import Domain, to_inputs
from acclimate.streams.images import (
    Pixels,
    Size,
    all_unreadable,
    count_bytes,
    read_ahead,
    try_read,
)

#: Source images in a batch.
BATCH = 128
#: The same where every pixel has a class: they are large, and have a prediction for every pixel.
MASK_BATCH = 4

_TOGETHER = 256  # images that are checked at a time

#: Positions of images that could be read, their pixels, and their labels.
Row = tuple[list[int], list[Pixels], Any]


class ImageStore(Protocol):
    """Labelled images that can be read in any order.

    A store can be used as `x` of a `Domain`, whose `y` are its labels.

    Attributes:
        classes: Names in the order of the class numbers.
        description: What a result must record about its data; can be written as JSON.
        palette: The colour of each class in pictures, if there is a class for every pixel.
        unreadable: The reason by path, of images that could not be read so far.
        dtype: That of the images.
        labels: Class numbers (n,) or masks (n, height, width) of all images, as an array.
    """

    classes: tuple[str, ...]
    description: dict[str, Any]
    palette: tuple[Colour, ...]
    unreadable: dict[Path, str]
    dtype: npt.DTypeLike
    labels: Any

    def __len__(self) -> int:
        """Return the number of images."""

    def __getitem__(self, indices: Any) -> Pixels:
        """Return the images at these positions, as (n, height, width, 3)."""

    def select(self, keys: Sequence[int]) -> Self:
        """Return the images at these positions as a store, in this order."""

    def first(self, n: int | None) -> Self:
        """Return so many images: the first of arrays, of files at even distances; None for all."""

    def read(self, picks: Iterable[Sequence[int]]) -> Iterator[Row]:
        """Yield the images and labels at each row of positions, without unreadable images."""

    def corrupted(self, shift: Shift) -> Self:
        """Return the images under a corruption, whose draws depend on their names; not masks."""

    def digest(self) -> str:
        """Return the SHA-256 of all images and labels."""

    def described(self, **more: Any) -> Self:
        """Return the same images with more in their description."""
        return replace(self, description={**self.description, **more})  # type: ignore[type-var]

    @property
    def has_masks(self) -> bool:
        """Whether every pixel has a class."""
        return len(getattr(self.labels, "shape", ())) > 1

    def loaded(self) -> ImageStore:
        """Return the same images in memory; `BadInput` names files that cannot be used."""
        return self

    def readable(self) -> list[int]:
        """Return the positions of the images that can be read; files are read once for that."""
        return list(range(len(self)))

    def verify(self, progress: Progress | None = None, needs_labels: bool = True) -> int:
        """Read all images and masks, so that faults are found before anything that takes long.

        Return the number of images whose pixels are all ignored, which are faults too if labels are
        needed. `progress` is called with the number of masks.
        """
        return 0

    def batches(self, picks: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield uint8 images (batch, 3, height, width) and labels for each row of positions.

        Unreadable images are left out, with one warning each.

        Raises:
            BadInput: None of the images of a batch can be read.
        """
        rows = [torch.as_tensor(pick).tolist() for pick in picks]
        known = set(self.unreadable)
        for row, (kept, pixels, labels) in zip(rows, self.read(rows), strict=True):
            self._warn_unreadable(known)
            if not kept:
                paths = tuple(self.unreadable)
                text = (
                    f"None of the {len(row)} images of a batch can be read; the last is "
                    f"{paths[-1]}. Check that the files are complete images."
                )
                raise BadInput("unreadable_images", text, paths=paths)
            x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
            yield x, torch.from_numpy(np.ascontiguousarray(labels))

    def to_domain(self, name: str | None = None) -> Domain:
        """Return all images and labels, to make a stream of; masks are read now.

        Without a name, that in tables is the corruption, or `clean`.
        """
        store = self.loaded() if self.has_masks else self
        x = store.images if isinstance(store, ArrayStore) else store
        return Domain(name or self.description.get("corruption", "clean"), x, store.labels)

    def _warn_unreadable(self, known: set[Path]) -> None:
        for path in [path for path in self.unreadable if path not in known]:
            known.add(path)
            text = f"{path} cannot be read ({self.unreadable[path]}) and is left out."
            warn(AcclimateWarning("unreadable_images", text, paths=(path,)))


@dataclass(frozen=True)
class ArrayStore(ImageStore):
    """Images in an array, which may be memory-mapped: only what is asked for is read.

    Attributes:
        images: Shape (n, height, width, 3).
        labels: Class numbers, or masks.
    """

    images: Pixels
    labels: Labels
    classes: tuple[str, ...]
    description: dict[str, Any] = field(default_factory=dict)
    palette: tuple[Colour, ...] = ()
    unreadable: dict[Path, str] = field(default_factory=dict)

    dtype = np.dtype(np.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, indices: Any) -> Pixels:
        found: Pixels = self.images[indices]
        return found

    def select(self, keys: Sequence[int]) -> ArrayStore:
        # A slice keeps a memory-mapped array on disk.
        is_run = isinstance(keys, range) and keys.step == 1
        own: Any = slice(keys[0], keys[-1] + 1) if is_run and len(keys) else list(keys)
        images = self.images[own]
        labels = np.array(self.labels[own])  # a tensor needs memory that is writable
        return replace(self, images=images, labels=labels).described(n=len(images))

    def first(self, n: int | None) -> ArrayStore:
        return self if n is None else self.select(range(n))

    def read(self, picks: Iterable[Sequence[int]]) -> Iterator[Row]:
        for row in picks:
            keys = list(row)
            yield keys, list(self.images[keys]), self.labels[keys]

    def corrupted(self, shift: Shift) -> ArrayStore:
        made = [corrupt_image(x, str(place), shift) for place, x in enumerate(self.images)]
        return replace(self, images=np.stack(made)).described(**shift.describe())

    def digest(self) -> str:
        return labelled_sha256(self.images, self.labels)

    def verify(self, progress: Progress | None = None, needs_labels: bool = True) -> int:
        return int((self.labels == IGNORE).all(axis=(1, 2)).sum()) if self.has_masks else 0


@dataclass(frozen=True, kw_only=True)
class FolderStore(ImageStore):
    """Image files, which threads read one batch ahead and bring to one size.

    Attributes:
        paths: The images.
        names: Of the images in their set, the same on every machine.
        labels: Class numbers, or mask files.
        size: Height and width of the images.
        resize: What they are resized to cover before a crop of `size`; None for `size`.
        squash: Resize without keeping the shape, and do not crop.
        shift: A corruption of the images; masks stay as they are.
    """

    paths: Sequence[Path]
    names: Sequence[str]
    labels: Labels | MaskFiles
    classes: tuple[str, ...]
    size: Size
    resize: Size | None = None
    squash: bool = False
    shift: Shift | None = None
    description: dict[str, Any] = field(default_factory=dict)
    palette: tuple[Colour, ...] = ()
    unreadable: dict[Path, str] = field(default_factory=dict)

    dtype = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all images."""
        return (len(self), *self.size, 3)

    @property
    def masks(self) -> Sequence[Path]:
        """The mask files; none if there are class numbers."""
        return self.labels.paths if isinstance(self.labels, MaskFiles) else ()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: Any) -> Pixels:
        """Read the images at these positions; `BadInput` if one cannot be read any more."""
        keys = np.atleast_1d(np.asarray(indices, np.int64)).tolist()
        if not keys:
            raise BadInput("empty_batch", "Expected at least one image to read, found none.")
        (found,) = read_ahead([keys], self._try_pixels)
        for key, result in zip(keys, found, strict=True):
            if isinstance(result, str):
                path = self.paths[key]
                self.unreadable[path] = result
                text = f"{path} was read before but can no longer be read ({result})."
                raise BadInput("unreadable_images", text, paths=(path,))
        return np.stack([result for result in found if not isinstance(result, str)])

    def select(self, keys: Sequence[int]) -> FolderStore:
        own = list(keys)
        labels = self.labels
        return replace(
            self,
            paths=[self.paths[key] for key in own],
            names=[self.names[key] for key in own],
            labels=labels.select(own)
            if isinstance(labels, MaskFiles)
            else labels[np.array(own, np.int64)],
        ).described(n=len(own))

    def first(self, n: int | None) -> FolderStore:
        # The first ones would all be of one class.
        return self if n is None else self.select(spread(len(self), n))

    def read(self, picks: Iterable[Sequence[int]]) -> Iterator[Row]:
        rows = [list(row) for row in picks]
        for row, results in zip(rows, read_ahead(rows, self._try_both), strict=True):
            kept = [k for k, each in zip(row, results, strict=True) if not isinstance(each, str)]
            good = keep_good(
                each for each in results if self.has_masks or not isinstance(each, str)
            )
            yield kept, [pixels for pixels, _ in good], np.array([label for _, label in good])

    def sized(self, size: Size) -> FolderStore:
        """Return the same images, and masks, in another size."""
        own = self.labels
        resized = replace(own, size=size) if isinstance(own, MaskFiles) else own
        return replace(self, size=size, labels=resized)

    def corrupted(self, shift: Shift) -> FolderStore:
        return replace(self, shift=shift, unreadable={}).described(**shift.describe())

    def readable(self) -> list[int]:
        known = set(self.unreadable)
        good = self.find_readable()
        self._warn_unreadable(known)
        return good

    def find_readable(self, progress: Progress = silent, stage: str = "") -> list[int]:
        """Return what `readable` does, without a warning for each image that it leaves out."""
        good: list[int] = []
        rows = _rows(len(self), _TOGETHER)
        for row, (kept, _, _) in zip(rows, self.read(rows), strict=True):
            good += kept
            progress(stage, row[-1] + 1, len(self))
        return good

    def digest(self, with_labels: bool = True) -> str:
        if self.masks:
            shift = {} if self.shift is None else self.shift.describe()
            pairs = zip(self.names, self.paths, self.masks, strict=True)
            files = [(name, (image, mask)) for name, image, mask in pairs]
            return files_sha256([(json.dumps(shift, sort_keys=True), ()), *files])
        if not with_labels:
            return files_sha256(
                (n, (path,)) for n, path in zip(self.names, self.paths, strict=True)
            )
        named = zip(self.names, np.asarray(self.labels), self.paths, strict=True)
        return files_sha256((f"{name}\t{label}", (path,)) for name, label, path in named)

    def verify(self, progress: Progress | None = None, needs_labels: bool = True) -> int:
        faults, n_unlabelled = self.find_faults(progress, needs_labels)
        refuse(faults)
        return n_unlabelled

    def find_faults(
        self, progress: Progress | None = None, needs_labels: bool = True
    ) -> tuple[list[str], int]:
        """Return what is wrong with any image or mask, and the number of images without a label."""
        if not self.masks:
            return [], 0
        faults: list[str] = []
        n_unlabelled, rows = 0, _rows(len(self), MASK_BATCH)
        for row, results in zip(
            rows, read_ahead(rows, replace(self, shift=None)._try_both), strict=True
        ):
            for key, found in zip(row, results, strict=True):
                if isinstance(found, str):
                    faults.append(found)
                elif (found[1] == IGNORE).all():
                    n_unlabelled += 1
                    mask = self.masks[key]
                    text = f"{mask} has no pixel of any class: all pixels are ignored. Remove it."
                    faults += [text] if needs_labels else []
            if progress is not None:
                progress("reading masks", row[-1] + 1, len(self))
        return faults, n_unlabelled

    def loaded(self) -> ArrayStore:
        (found,) = read_ahead([range(len(self))], self._try_both)
        images, labels = zip(*keep_good(found), strict=True)
        own = (self.classes, self.description, self.palette)
        return ArrayStore(np.stack(images), np.stack(labels), *own)

    def _try_pixels(self, key: int) -> Pixels | str:
        pixels = try_read(self.paths[key], self.size, self.resize, self.squash)
        if isinstance(pixels, str) or self.shift is None:
            return pixels
        return corrupt_image(pixels, self.names[key], self.shift)

    def _try_both(self, key: int) -> tuple[Pixels, Any] | str:
        """Return an image and its label, or what is wrong with either."""
        pixels = self._try_pixels(key)
        if isinstance(self.labels, MaskFiles):
            if isinstance(pixels, str):
                return f"{self.paths[key]} cannot be read ({pixels})."
            mask = self.labels.try_read(key)
            return mask if isinstance(mask, str) else (pixels, mask)
        if isinstance(pixels, str):
            self.unreadable.setdefault(self.paths[key], pixels)
            return pixels
        return pixels, self.labels[key]


class Batches:
    """The images of a store in labelled batches `(x, y)`, such as for `acclimate.prepare`.

    Unreadable images are left out and listed.

    Args:
        store: The images.
        batch_size: Batch size.
        seed: Seed of the order; None keeps the order of the store.
        normalization: Applied to the images in [0, 1]; None for none.
        reshuffle: Whether every pass has another order, which depends on the seed and the number of
            earlier passes.

    Raises:
        BadInput: The batch size is below 1. While iterating: no image can be read.
    """

    def __init__(
        self,
        store: ImageStore,
        batch_size: int = BATCH,
        seed: int | None = 0,
        normalization: Normalization | None = None,
        reshuffle: bool = False,
    ) -> None:
        check_at_least("batch_size", batch_size, 1)
        self.store, self.batch_size, self.normalization = store, batch_size, normalization
        self._seed, self._reshuffle, self._n_passes = seed, reshuffle, 0

    @property
    def has_masks(self) -> bool:
        """Whether every pixel has a class."""
        return self.store.has_masks

    @property
    def classes(self) -> tuple[str, ...]:
        """Names in the order of the class numbers."""
        return self.store.classes

    @property
    def description(self) -> dict[str, Any]:
        """What a result must record about the images."""
        return self.store.description

    @property
    def unreadable(self) -> dict[Path, str]:
        """The reason by path, of images that could not be read so far."""
        return self.store.unreadable

    def __len__(self) -> int:
        """Return the number of batches."""
        return -(-len(self.store) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the images once."""
        order = torch.arange(len(self.store))
        if self._seed is not None:
            seed = self._seed * 100_003 + self._n_passes if self._reshuffle else self._seed
            order = torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))
        self._n_passes += 1
        is_usable = False
        picks = [part.tolist() for part in torch.split(order, self.batch_size)]
        for kept, images, labels in self.store.read(picks):
            if kept:
                is_usable = True
                x = to_inputs(np.stack(images), self.normalization, channels_last=self.has_masks)
                yield x, torch.tensor(labels)
        if not is_usable:
            path, reason = next(iter(self.unreadable.items()))
            raise all_unreadable(len(self.store), path, reason)

    def peek(self) -> Tensor:
        """Return the images of a first batch; this does not count as a pass."""
        x = next(iter(self))[0]
        self._n_passes -= 1
        return x


def list_unreadable(paths: Sequence[Path], progress: Progress) -> list[str]:
    """Return a sentence for each image that cannot be read; all are read, at a small size."""
    names, labels = [path.name for path in paths], np.zeros(len(paths), np.int64)
    store = FolderStore(paths=paths, names=names, labels=labels, classes=(), size=(32, 32))
    store.find_readable(progress, "reading images")
    return [f"{path} cannot be read ({reason})." for path, reason in store.unreadable.items()]


def list_content(store: FolderStore) -> str:
    """Return the SHA-256 of the names and sizes of all files of a store."""
    lines = []
    for place, (name, path) in enumerate(zip(store.names, store.paths, strict=True)):
        more = f"\t{count_bytes(store.masks[place])}" if store.masks else ""
        lines.append(f"{name}\t{count_bytes(path)}{more}")
    return text_sha256(lines)


def concatenate(stores: Sequence[ImageStore]) -> ImageStore:
    """Return the images of several stores of one kind and with the same classes as one."""
    first = stores[0]
    about = {**first.description, "n": sum(map(len, stores))}
    if all(isinstance(store, ArrayStore) for store in stores):
        images = np.concatenate([store[:] for store in stores])
        labels = np.concatenate([store.labels for store in stores])
        return ArrayStore(images, labels, first.classes, about, first.palette)
    own = [store for store in stores if isinstance(store, FolderStore)]
    if len(own) < len(stores):
        found = ", ".join(sorted({type(store).__name__ for store in stores}))
        text = f"Expected stores that are all arrays or all files, found {found}."
        raise BadInput("wrong_type", text, option="stores", found=found)
    return replace(
        own[0],
        paths=[path for store in own for path in store.paths],
        names=[name for store in own for name in store.names],
        labels=np.concatenate([np.asarray(store.labels) for store in own]),
        description=about,
        unreadable={path: why for store in own for path, why in store.unreadable.items()},
    )


def spread(n: int, wanted: int | None) -> list[int]:
    """Return that many of n positions at even distances; all, if there are no more.

    >>> spread(6, 3), spread(2, 5)
    ([0, 2, 4], [0, 1])
    """
    if wanted is None or wanted >= n:
        return list(range(n))
    return [index * n // wanted for index in range(wanted)]


def _rows(n: int, size: int) -> list[list[int]]:
    return [list(range(start, min(start + size, n))) for start in range(0, n, size)]
