"""Image folders: unlabelled as a stream, labelled as a source.

Images are decoded by a few threads, one batch ahead, so that reading does not hold up the model.
An image that cannot be read is left out and kept in `unreadable` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.normalization import Normalization
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
    """Images of a folder that go through the model together.

    Attributes:
        number: Which batch of the listing, from 0; one without a readable image is left out.
        paths: Of the images that could be read.
        x: The images, normalised.
    """

    number: int
    paths: list[Path]
    x: Tensor


class Folder:
    """The images of a folder, in batches, as often as needed.

    Args:
        root: Any nesting.
        size: Height and width, or one number for both; None if all images have one size.
        batch_size: Images a batch.
        normalization: Applied to the images in [0, 1]; None for none.
        resize: What images are resized to cover before a crop of `size`: one number for the shorter
            side, as 256 before 224 for ImageNet; None for `size` itself.

    Attributes:
        paths: All images listed, readable or not.
        unreadable: The reason by path, of those that could not be read so far.

    Raises:
        BadInput: No folder, no image, images of several sizes; when iterating: none is readable.
    """

    #: Whether images are brought to the size whole, not cropped.
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
                f"expected a batch size of at least 1, found {batch_size}.",
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
        """Yield these images in batches, from the batch of that number on."""
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
        root: Any nesting.
        size: Height and width, or one number for both; None if all images have one size.
        batch_size: Images a batch.
        normalization: Applied to the images in [0, 1]; None for none.
        seed: Shuffles the images; None keeps them sorted by path.
        resize: What images are resized to cover before a crop of `size`; see `Folder`.
        squash: Bring images to `size` whole, whatever their shape, and crop nothing: for models
            that predict every pixel.

    Attributes:
        crops: Whether parts of images may be cut away.
        unreadable: Besides what `Folder` says: images of a kind that is not read, such as .gif.
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
                "expected either resize=, before a crop, or squash=True, which crops nothing; "
                "found both. Leave one out.",
                options=("resize", "squash"),
            )
        super().__init__(root, size, batch_size, normalization, resize)
        self.unreadable |= find_other_kinds(self.root)
        self.squash = squash and size is not None
        self.crops = size is not None and not squash
        if seed is not None:
            self.paths = [self.paths[index] for index in _order(len(self.paths), seed)]

    def __iter__(self) -> Iterator[tuple[list[Path], Tensor]]:
        """Go through the folder once."""
        for batch in self.batches():
            yield batch.paths, batch.x

    def batches(self, start: int = 0) -> Iterator[FolderBatch]:
        """Go through the folder once, from the batch of that number on."""
        return self.decode(self.paths, start)

    def mark_unreadable(self, paths: Sequence[Path]) -> None:
        """Note images that an earlier pass could not read; the reason is looked up."""
        for path in paths:
            result = try_read(path, self.size, self.resize, self.squash)
            reason = result if isinstance(result, str) else "it could not be read earlier"
            self.unreadable[path] = reason


class FolderSource(Folder):
    """Labelled images `root/<class>/…` in batches `(x, y)`, shuffled anew at every pass.

    Args:
        root: One folder a class; an empty one names a class, too. Deeper nesting is allowed if it
            leaves no doubt which folders are the classes, or if they are given.
        size: Height and width, or one number for both; None if all images have one size.
        batch_size: Images a batch.
        normalization: Applied to the images in [0, 1]; None for none.
        seed: Of the order, together with the number of passes begun before.
        classes: Class names in the order of the model's logits; the folder names, sorted, if None.
        resize: What images are resized to cover before a crop of `size`; see `Folder`.

    Raises:
        BadInput: Besides what `Folder` refuses: no class folders, an unknown one; or, where the
            classes are not known otherwise, only one, or images of which some lie deeper than
            others, or folders of one name in several class folders, as conditions have.
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
        """Go through the folder once, in a new order."""
        order = _order(len(self.paths), self._seed * 100_003 + self._n_passes)
        self._n_passes += 1
        for batch in self.decode([self.paths[index] for index in order]):
            yield batch.x, torch.tensor([self._labels[path] for path in batch.paths])


def read_classes(path: str | Path) -> list[str]:
    """Return the class names in a text file, one a line; the first is class 0."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(
            "not_a_file",
            f"{path} is not a file. Give a text file with one class name a line.",
            path=path,
        )
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BadInput(
            "unreadable", f"{path} is not a UTF-8 text file. Give one class name a line.", path=path
        ) from error
    names = [line.strip() for line in lines if line.strip()]
    twice = sorted({name for name in names if names.count(name) > 1})
    advice = "Give every class name once, one a line."
    if twice:
        found = ", ".join(twice[:5])
        raise BadInput("duplicate", f"{path} has {found} more than once. {advice}", name=twice[0])
    if not names:
        raise BadInput("malformed_file", f"{path} is empty. {advice}", path=path)
    return names


def _order(n: int, seed: int) -> list[int]:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
