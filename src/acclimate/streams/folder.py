"""Unlabelled image folders as a stream.

A few threads decode images one batch ahead, so that the model does not wait for them. An image that
cannot be read is skipped and listed in `unreadable` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from acclimate.errors import BadInput, check_at_least
from acclimate.functional.inputs import Normalization
from acclimate.streams.batch import to_inputs
from acclimate.streams.images import (
    Pixels,
    Size,
    all_unreadable,
    as_size,
    check_resize,
    common_size,
    find_other_kinds,
    list_images,
    read_ahead,
    try_read,
)

__all__ = ["FolderBatch", "FolderStream", "list_images", "read_classes"]


@dataclass(frozen=True)
class FolderBatch:
    """Images of a folder that could be read, and the number of their batch in the listing."""

    number: int
    paths: list[Path]
    x: Tensor


class FolderStream:
    """Unlabelled images of a folder in batches `(paths, x)`, which can be iterated repeatedly.

    Args:
        root: The folder, with any nesting.
        size: Height and width, or one number for both; None if all images have the same size.
        batch_size: Batch size.
        normalization: Normalisation of the images in [0, 1]; None for none.
        seed: Seed of the order; None keeps the images sorted by path.
        resize: Size to which images are resized, keeping their shape, before a crop of `size`: one
            number for the shorter side, such as 256 before 224 for ImageNet; None for `size`.
        squash: Resize images to `size` without keeping their shape, and do not crop: for models
            that predict every pixel.

    Attributes:
        paths: All listed images, readable or not.
        crops: Whether parts of images may be cropped away.
        unreadable: Reasons by path, for the images that could not be read so far, and for images
            of unsupported formats, such as .gif.

    Raises:
        BadInput: There is no folder, no image, or images have several sizes. While iterating: no
            image can be read.
    """

    def __init__(
        self,
        root: str | Path,
        size: int | Size | None = None,
        batch_size: int = 200,
        normalization: Normalization | None = None,
        seed: int | None = None,
        resize: int | Size | None = None,
        squash: bool = False,
    ) -> None:
        if squash and resize is not None:
            text = (
                "Expected either resize=, before a crop, or squash=True, which does not crop, "
                "found both. Remove one of them."
            )
            raise BadInput("conflicting_options", text, options=("resize", "squash"))
        check_at_least("batch_size", batch_size, 1)
        self.root = Path(root)
        self.paths = list_images(root)
        self.resize = check_resize(resize, size)
        self.size = as_size(size) if size is not None else common_size(self.paths)
        self.batch_size = batch_size
        self.normalization = normalization
        self.unreadable = find_other_kinds(self.root)
        self.squash = squash and size is not None
        self.crops = size is not None and not squash
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(self.paths), generator=generator).tolist()
            self.paths = [self.paths[index] for index in order]

    def __len__(self) -> int:
        """Return the number of batches."""
        return -(-len(self.paths) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[list[Path], Tensor]]:
        """Iterate over the folder once."""
        for batch in self.batches():
            yield batch.paths, batch.x

    def batches(self, start: int = 0) -> Iterator[FolderBatch]:
        """Iterate over the folder once, starting with batch number `start`."""
        steps = range(start * self.batch_size, len(self.paths), self.batch_size)
        groups = [self.paths[step : step + self.batch_size] for step in steps]
        usable = start > 0
        for number, results in enumerate(read_ahead(groups, self._try_read), start):
            read = []
            for path, result in zip(groups[number - start], results, strict=True):
                if isinstance(result, str):
                    self.unreadable[path] = result
                else:
                    read.append((path, result))
            if read:
                usable = True
                x = to_inputs(np.stack([pixels for _, pixels in read]), self.normalization)
                yield FolderBatch(number, [path for path, _ in read], x)
        if not usable:
            first = self.paths[0]
            raise all_unreadable(len(self.paths), first, self.unreadable[first])

    def mark_unreadable(self, paths: Sequence[Path]) -> None:
        """Record images that an earlier pass could not read, with the reason."""
        for path in paths:
            result = self._try_read(path)
            reason = result if isinstance(result, str) else "it could not be read earlier"
            self.unreadable[path] = reason

    def _try_read(self, path: Path) -> Pixels | str:
        return try_read(path, self.size, self.resize, self.squash)


def read_classes(path: str | Path) -> list[str]:
    """Return the class names in a text file, one per line; the first is class 0."""
    path = Path(path)
    if not path.is_file():
        text = f"Expected a text file with one class name per line, but {path} is not a file. "
        raise BadInput("not_a_file", text + "Check the path.", path=path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        text = f"Expected a UTF-8 text file with one class name per line, but {path} is not one."
        raise BadInput("unreadable", text, path=path) from error
    names = [line.strip() for line in lines if line.strip()]
    twice = sorted({name for name in names if names.count(name) > 1})
    advice = "Write every class name once, one per line."
    if twice:
        found = ", ".join(twice[:5])
        text = f"{path} contains {found} more than once. {advice}"
        raise BadInput("duplicate", text, name=twice[0])
    if not names:
        raise BadInput("malformed_file", f"{path} is empty. {advice}", path=path)
    return names
