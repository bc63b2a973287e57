"""Images with a class for every pixel, to be had in any order, as they are or corrupted.

camvid = load_masks("camvid", "val")
x, y = next(camvid.batches([torch.arange(4)]))         # uint8 (4, 3, 180, 240), (4, 180, 240)
foggy = load_masks("camvid", "test", corruption="fog", severity=5).to_domain()
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from acclimate.data.arrays import files_sha256
from acclimate.data.masks.pixels import Mask, find_size, read_mask, read_pair
from acclimate.data.masks.shift import Shift, corrupt_image, describe, name_of
from acclimate.data.masks.specs import IGNORE, Colour, make_table
from acclimate.data.masks.tree import MaskTree, Pair
from acclimate.data.places import Progress
from acclimate.errors import BadInput
from acclimate.streams.batch import Domain
from acclimate.streams.images import Pixels, Size, show_size

_N_THREADS = 2
_SHOWN = 5
_STEP = 50


class LabelledPixels(Protocol):
    """Images with a class for every pixel.

    Attributes:
        classes: Names in the order of the class numbers.
        palette: Their colours in pictures.
        description: What a result must say of its data; can be written as JSON.
    """

    classes: tuple[str, ...]
    palette: tuple[Colour, ...]
    description: dict[str, Any]

    def __len__(self) -> int:
        """Return the number of images."""

    def batches(self, picks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield uint8 images (batch, 3, height, width) and labels (batch, height, width)."""

    def verify(self, progress: Progress | None = None, needs_labels: bool = True) -> int:
        """Look at every pixel, before anything is begun that a bad mask would break off.

        Args:
            progress: Is told of masks.
            needs_labels: Whether an image all of whose pixels are ignored is refused, too.

        Returns:
            How many such images there are.

        Raises:
            BadInput: Files cannot be used; the first are named, and how many more.
        """

    def to_domain(self, name: str | None = None) -> Domain:
        """Return all images and labels in memory, to be made a stream of.

        Args:
            name: What tables call it; None is the corruption, or `clean`.

        Raises:
            BadInput: Files cannot be used; the first are named, and how many more.
        """


class MaskedImages:
    """Image files with their masks; see `LabelledPixels` for what they can do.

    Args:
        tree: What lies in the folder.
        split: Of it.
        pairs: Those that are taken.
        palette: The colour of each class.
        size: Height and width to bring all to; None if they have one size.
        shift: What is done to the images; the masks stay as they are.

    Raises:
        BadInput: There is no pair; or headers cannot be read, or sizes differ. All are told.
    """

    def __init__(
        self,
        tree: MaskTree,
        split: str,
        pairs: Sequence[Pair],
        palette: tuple[Colour, ...],
        size: Size | None = None,
        shift: Shift | None = None,
    ) -> None:
        if not pairs:
            raise BadInput(
                "no_images",
                f"No image with a mask was found in {tree.base}, split {split!r}.",
                path=tree.base,
            )
        self.classes, self.palette, self.pairs, self.shift = tree.classes, palette, pairs, shift
        self._tables = {kind: make_table(ids) for kind, ids in tree.ids.items()}
        self.size = _find_common_size(pairs, size)
        listing = "\n".join(
            f"{pair.name}\t{pair.image.stat().st_size}\t{pair.mask.stat().st_size}"
            for pair in pairs
        )
        self.description: dict[str, Any] = {
            "split": split,
            "source": "folder",
            "listing_sha256": hashlib.sha256(listing.encode()).hexdigest(),
            "size": list(self.size),
            "n": len(pairs),
        }
        self.description |= describe(shift)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.pairs)

    def read(self, index: int) -> tuple[Pixels, Mask]:
        """Return one image (height, width, 3), corrupted if asked for, and its labels.

        Raises:
            BadInput: Either cannot be used; the file is named.
        """
        found = self._try_read(index)
        if isinstance(found, str):
            raise BadInput("faulty_data", found, faults=(found,))
        return found

    def batches(self, picks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels for each row of positions, read one batch ahead."""
        pool = ThreadPoolExecutor(_N_THREADS)
        waiting: list[list[Any]] = []
        try:
            for batch in picks:
                waiting.append([pool.submit(self.read, index) for index in batch.tolist()])
                if len(waiting) > 1:
                    yield stack_pairs([task.result() for task in waiting.pop(0)])
            for tasks in waiting:
                yield stack_pairs([task.result() for task in tasks])
        finally:
            pool.shutdown(cancel_futures=True)

    def find_faults(self, progress: Progress | None = None) -> list[str]:
        """Return what is wrong with any image or mask, every pixel looked at, one line each."""
        return self._look(progress, needs_labels=True)[0]

    def _look(self, progress: Progress | None, needs_labels: bool) -> tuple[list[str], int]:
        """Return what is wrong, and how many images have no label."""
        faults, n_unlabelled = [], 0
        for index, pair in enumerate(self.pairs):
            found = read_pair(pair, self._tables[pair.kind], self.size)
            if isinstance(found, str):
                faults.append(found)
            elif (found[1] == IGNORE).all():
                n_unlabelled += 1
                fault = f"{pair.mask} has no pixel of any class: all pixels are ignored. Remove it."
                faults += [fault] if needs_labels else []
            if progress is not None and (index + 1) % _STEP == 0:
                progress("reading masks", index + 1, len(self.pairs))
        return faults, n_unlabelled

    def verify(self, progress: Progress | None = None, needs_labels: bool = True) -> int:
        """Look at every pixel; see `LabelledPixels`."""
        faults, n_unlabelled = self._look(progress, needs_labels)
        refuse(faults)
        return n_unlabelled

    def to_domain(self, name: str | None = None) -> Domain:
        """Return all images and labels in memory; see `LabelledPixels`."""
        with ThreadPoolExecutor(_N_THREADS) as pool:
            found = list(pool.map(self._try_read, range(len(self.pairs))))
        refuse([each for each in found if isinstance(each, str)])
        good = [each for each in found if not isinstance(each, str)]
        images, masks = zip(*good, strict=True)
        return Domain(name or name_of(self.shift), np.stack(images), np.stack(masks))

    def open_domain(self, name: str | None = None) -> Domain:
        """Return all images and labels, read when they are asked for; look at them before."""
        return Domain(name or name_of(self.shift), _Images(self), _Labels(self))

    def digest(self) -> str:
        """Return the SHA-256 of all image and mask files, and of what is done to the images."""
        files = [(pair.name, (pair.image, pair.mask)) for pair in self.pairs]
        return files_sha256([(json.dumps(describe(self.shift), sort_keys=True), ()), *files])

    def read_labels(self, index: int) -> Mask:
        """Return the labels of one image.

        Raises:
            BadInput: They cannot be used; the file is named.
        """
        pair = self.pairs[index]
        found = read_mask(pair.mask, self._tables[pair.kind], self.size)
        if isinstance(found, str):
            raise BadInput("faulty_data", found, faults=(found,))
        return found

    def _try_read(self, index: int) -> tuple[Pixels, Mask] | str:
        pair = self.pairs[index]
        found = read_pair(pair, self._tables[pair.kind], self.size)
        if isinstance(found, str) or self.shift is None:
            return found
        return corrupt_image(found[0], pair.name, self.shift), found[1]


class _Images:
    """Image files in the shape of an array (n, height, width, 3)."""

    dtype = np.dtype(np.uint8)

    def __init__(self, data: MaskedImages) -> None:
        self._data = data
        self.shape = (len(data), *data.size, 3)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, numbers: Mask) -> Pixels:
        return np.stack([self._data.read(index)[0] for index in numbers.tolist()])


class _Labels:
    """Masks in the shape of an array (n, height, width)."""

    def __init__(self, data: MaskedImages) -> None:
        self._data = data
        self.shape = (len(data), *data.size)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, numbers: Mask) -> Mask:
        return np.stack([self._data.read_labels(index) for index in numbers.tolist()])


def refuse(faults: Sequence[str]) -> None:
    """Raise the first faults, and say how many more there are.

    Raises:
        BadInput: There is any.
    """
    if faults:
        more = f"\n  (+ {len(faults) - _SHOWN} more)" if len(faults) > _SHOWN else ""
        text = "\n  ".join(faults[:_SHOWN]) + more
        raise BadInput("faulty_data", text, faults=tuple(faults))


def _find_common_size(pairs: Sequence[Pair], size: Size | None) -> Size:
    sizes = [find_size(pair) for pair in pairs]
    refuse([found for found in sizes if isinstance(found, str)])
    if size is not None:
        return size
    good = [found for found in sizes if not isinstance(found, str)]
    for pair, found in zip(pairs, good, strict=True):
        if found != good[0]:
            raise BadInput(
                "mixed_sizes",
                f"Expected images of one size, found {show_size(good[0])} and {pair.image} of "
                f"{show_size(found)}. Pass the size to resize them to: --size, or size= in Python.",
                sizes=tuple(sorted(set(good))),
            )
    return good[0]


def stack_pairs(pairs: Sequence[tuple[Pixels, Mask]]) -> tuple[Tensor, Tensor]:
    """Return images (n, 3, height, width) and labels (n, height, width)."""
    x = torch.from_numpy(np.stack([image for image, _ in pairs])).permute(0, 3, 1, 2)
    return x, torch.from_numpy(np.stack([mask for _, mask in pairs]))
