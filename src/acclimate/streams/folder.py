"""Image folders: unlabelled as a stream, labelled as a source.

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

from acclimate.errors import BadInput
from acclimate.functional.inputs import Normalization
from acclimate.streams.images import (
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
from acclimate.streams.layout import find_classes

__all__ = ["FolderBatch", "FolderSource", "FolderStream", "list_images", "read_classes"]


@dataclass(frozen=True)
class FolderBatch:
    """A batch of images of a folder.

    Attributes:
        number: Number of the batch in the listing, from 0. Batches without a readable image are
            skipped.
        paths: Paths of the images that could be read.
        x: The normalised images.
    """

    number: int
    paths: list[Path]
    x: Tensor


class Folder:
    """The images of a folder in batches, which can be iterated repeatedly.

    Args:
        root: The folder, with any nesting.
        size: Height and width, or one number for both; None if all images have the same size.
        batch_size: Batch size.
        normalization: Normalisation of the images in [0, 1]; None for none.
        resize: Size to which images are resized, keeping their shape, before a crop of `size`: one
            number for the shorter side, such as 256 before 224 for ImageNet; None for `size`.

    Attributes:
        paths: All listed images, readable or not.
        unreadable: Reasons by path, for the images that could not be read so far.

    Raises:
        BadInput: There is no folder, no image, or images have several sizes. While iterating: no
            image can be read.
    """

    #: Whether images are resized without keeping their shape, instead of cropped.
    squash = False

    def __init__(
        self,
        root: str | Path,
        size: int | Size | None,
        batch_size: int,
        normalization: Normalization | None,
        resize: int | Size | None = None,
    ) -> None:
        if batch_size < 1:
            raise BadInput(
                "out_of_range",
                f"Expected a batch size of at least 1, found {batch_size}.",
                option="batch_size",
                found=batch_size,
            )
        self.root = Path(root)
        self.paths = list_images(root)
        self.resize = check_resize(resize, size)
        self.size = as_size(size) if size is not None else common_size(self.paths)
        self.batch_size = batch_size
        self.normalization = normalization
        self.unreadable: dict[Path, str] = {}

    def __len__(self) -> int:
        """Return the number of batches."""
        return -(-len(self.paths) // self.batch_size)

    def decode(self, paths: Sequence[Path], start: int = 0) -> Iterator[FolderBatch]:
        """Yield these images in batches, starting with batch number `start`."""
        steps = range(start * self.batch_size, len(paths), self.batch_size)
        groups = [paths[step : step + self.batch_size] for step in steps]
        usable = start > 0
        images = read_ahead(groups, self.size, self.resize, self.squash)
        for number, results in enumerate(images, start):
            read = []
            for path, result in zip(groups[number - start], results, strict=True):
                if isinstance(result, str):
                    self.unreadable[path] = result
                else:
                    read.append((path, result))
            if read:
                usable = True
                pixels = np.stack([pixels for _, pixels in read]).transpose(0, 3, 1, 2)
                x = torch.from_numpy(np.ascontiguousarray(pixels)).float() / 255
                if self.normalization is not None:
                    x = self.normalization.normalize(x)
                yield FolderBatch(number, [path for path, _ in read], x)
        if not usable:
            raise all_unreadable(len(paths), paths[0], self.unreadable[paths[0]])


class FolderStream(Folder):
    """Unlabelled images of a folder in batches `(paths, x)`.

    Args:
        root: The folder, with any nesting.
        size: Height and width, or one number for both; None if all images have the same size.
        batch_size: Batch size.
        normalization: Normalisation of the images in [0, 1]; None for none.
        seed: Seed of the order; None keeps the images sorted by path.
        resize: Size to which images are resized before a crop of `size`; see `Folder`.
        squash: Resize images to `size` without keeping their shape, and do not crop: for models
            that predict every pixel.

    Attributes:
        crops: Whether parts of images may be cropped away.
        unreadable: As in `Folder`, and images of unsupported formats, such as .gif.
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
            raise BadInput(
                "conflicting_options",
                "Expected either resize=, before a crop, or squash=True, which does not crop, "
                "found both. Remove one of them.",
                options=("resize", "squash"),
            )
        super().__init__(root, size, batch_size, normalization, resize)
        self.unreadable |= find_other_kinds(self.root)
        self.squash = squash and size is not None
        self.crops = size is not None and not squash
        if seed is not None:
            self.paths = [self.paths[index] for index in _order(len(self.paths), seed)]

    def __iter__(self) -> Iterator[tuple[list[Path], Tensor]]:
        """Iterate over the folder once."""
        for batch in self.batches():
            yield batch.paths, batch.x

    def batches(self, start: int = 0) -> Iterator[FolderBatch]:
        """Iterate over the folder once, starting with batch number `start`."""
        return self.decode(self.paths, start)

    def mark_unreadable(self, paths: Sequence[Path]) -> None:
        """Record images that an earlier pass could not read, with the reason."""
        for path in paths:
            result = try_read(path, self.size, self.resize, self.squash)
            reason = result if isinstance(result, str) else "it could not be read earlier"
            self.unreadable[path] = reason


class FolderSource(Folder):
    """Labelled images `root/<class>/…` in batches `(x, y)`, shuffled again in every pass.

    Args:
        root: A folder with one folder per class; an empty one counts as a class. Deeper nesting is
            allowed if the class folders are unambiguous, or if `classes` are given.
        size: Height and width, or one number for both; None if all images have the same size.
        batch_size: Batch size.
        normalization: Normalisation of the images in [0, 1]; None for none.
        seed: Seed of the order, together with the number of earlier passes.
        classes: Class names in the order of the model's logits; the sorted folder names if None.
        resize: Size to which images are resized before a crop of `size`; see `Folder`.

    Raises:
        BadInput: As in `Folder`; and if there are no class folders, or an unknown one. If `classes`
            are not given, also if there is only one, if images have different depths, or if several
            class folders have folders of the same name, like those of conditions.
    """

    def __init__(
        self,
        root: str | Path,
        size: int | Size | None = None,
        batch_size: int = 128,
        normalization: Normalization | None = None,
        seed: int = 0,
        classes: Sequence[str] | None = None,
        resize: int | Size | None = None,
    ) -> None:
        super().__init__(root, size, batch_size, normalization, resize)
        names = [path.relative_to(self.root).parts[0] for path in self.paths]
        self.classes = find_classes(self.root, self.paths, classes)
        numbers = {name: number for number, name in enumerate(self.classes)}
        self._labels = {p: numbers[name] for p, name in zip(self.paths, names, strict=True)}
        self._seed = seed
        self._n_passes = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the folder once, in a new order."""
        order = _order(len(self.paths), self._seed * 100_003 + self._n_passes)
        self._n_passes += 1
        for batch in self.decode([self.paths[index] for index in order]):
            yield batch.x, torch.tensor([self._labels[path] for path in batch.paths])


def read_classes(path: str | Path) -> list[str]:
    """Return the class names in a text file, one per line; the first is class 0."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(
            "not_a_file",
            f"Expected a text file with one class name per line, but {path} is not a file. Check "
            "the path.",
            path=path,
        )
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BadInput(
            "unreadable",
            f"Expected a UTF-8 text file with one class name per line, but {path} is not one.",
            path=path,
        ) from error
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


def _order(n: int, seed: int) -> list[int]:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
