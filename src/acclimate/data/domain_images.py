"""The images of one domain: of an array, of files, or a part of either."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from acclimate.data.arrays import array_sha256, files_sha256, labelled_sha256
from acclimate.errors import AcclimateWarning, BadInput
from acclimate.streams.images import Pixels, Size, read_ahead

Labels = npt.NDArray[np.int64]

_TOGETHER = 256  # files that are listed at a time, where all are read


class Domain(Protocol):
    """Labelled images of one domain, to be had in any order.

    Attributes:
        classes: Names in the order of the class numbers.
        description: What a result must say of its data; can be written as JSON.
        labels: Class numbers of all images.
        unreadable: The reason by path, of images that could not be read so far.
    """

    classes: tuple[str, ...]
    description: dict[str, Any]
    labels: Labels
    unreadable: dict[Path, str]

    def __len__(self) -> int:
        """Return the number of images."""

    def batches(self, picks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield uint8 images (batch, 3, height, width) and labels for each row of positions."""

    def readable(self) -> list[int]:
        """Return the positions of the images that can be read; each is read once for that."""

    def digest(self, keys: Sequence[int]) -> str:
        """Return the SHA-256 of the images at these positions and of their labels."""


class ArrayDomain:
    """A domain whose images are in an array."""

    def __init__(
        self,
        images: npt.NDArray[np.uint8],
        labels: Labels,
        classes: Sequence[str],
        description: Mapping[str, Any],
    ) -> None:
        self._images, self.labels, self.classes = images, labels, tuple(classes)
        self.description = {**description, "sha256": array_sha256(images), "n": len(images)}
        self.unreadable: dict[Path, str] = {}

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._images)

    def batches(self, picks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels for each row of positions."""
        for batch in picks:
            rows = batch.numpy()
            pixels = torch.from_numpy(np.ascontiguousarray(self._images[rows]))
            yield pixels.permute(0, 3, 1, 2), torch.from_numpy(self.labels[rows])

    def readable(self) -> list[int]:
        """Return all positions: an array was read already."""
        return list(range(len(self)))

    def digest(self, keys: Sequence[int]) -> str:
        """Return the SHA-256 of the images at these positions and of their labels."""
        return labelled_sha256(self._images[list(keys)], self.labels[list(keys)])


class FolderDomain:
    """A domain of image files, which threads read one batch ahead and bring to one size.

    Images are resized whatever their shape, as DomainBed does. One that cannot be read is left out
    of its batch, and said once.

    Args:
        base: The folder of all domains.
        paths: Of the images.
        labels: Of each.
        classes: Names of the classes.
        size: Height and width the images are brought to.
    """

    def __init__(
        self,
        base: Path,
        paths: Sequence[Path],
        labels: Labels,
        classes: Sequence[str],
        size: Size,
    ) -> None:
        self._paths, self.labels, self.classes, self._size = paths, labels, tuple(classes), size
        self._base = base
        self.unreadable: dict[Path, str] = {}
        self._readable: list[int] | None = None
        listing = "\n".join(
            f"{path.relative_to(base).as_posix()}\t{path.stat().st_size}" for path in paths
        )
        self.description: dict[str, Any] = {
            "source": "folder",
            "listing_sha256": hashlib.sha256(
                listing.encode("utf-8", "surrogateescape")
            ).hexdigest(),
            "size": list(size),
            "n": len(paths),
        }

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._paths)

    def batches(self, picks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels for each row of positions; unreadable images are left out."""
        for batch, (kept, pixels) in zip(picks, self._read(picks), strict=True):
            if not kept:
                raise BadInput(
                    "unreadable_images",
                    f"None of the {len(batch)} images of a batch can be read; the first is "
                    f"{self._paths[int(batch[0])]}. Check that the files are complete images.",
                    paths=tuple(self._paths[index] for index in batch.tolist()),
                )
            x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
            yield x, torch.from_numpy(self.labels[kept])

    def readable(self) -> list[int]:
        """Return the positions of the images that can be read; each is read once for that."""
        if self._readable is None:
            picks = torch.split(torch.arange(len(self)), _TOGETHER)
            self._readable = [index for kept, _ in self._read(picks) for index in kept]
        return self._readable

    def digest(self, keys: Sequence[int]) -> str:
        """Return the SHA-256 of the files at these positions, their names and their labels."""
        names = [self._paths[key].relative_to(self._base).as_posix() for key in keys]
        return files_sha256(
            (f"{name}\t{self.labels[key]}", (self._paths[key],))
            for key, name in zip(keys, names, strict=True)
        )

    def _read(self, picks: Sequence[Tensor]) -> Iterator[tuple[list[int], list[Pixels]]]:
        """Yield the positions of each row that can be read, and their pixels; note the others."""
        groups = [[self._paths[index] for index in batch.tolist()] for batch in picks]
        read = read_ahead(groups, self._size, squash=True)
        for batch, group, results in zip(picks, groups, read, strict=True):
            kept, pixels = [], []
            for index, path, result in zip(batch.tolist(), group, results, strict=True):
                if isinstance(result, str):
                    self._note(path, result)
                else:
                    kept.append(index)
                    pixels.append(result)
            yield kept, pixels

    def _note(self, path: Path, reason: str) -> None:
        if path not in self.unreadable:
            self.unreadable[path] = reason
            text = f"{path} cannot be read ({reason}) and is left out."
            warnings.warn(AcclimateWarning("unreadable_images", text, paths=(path,)), stacklevel=4)


class Part:
    """Some images of a domain, in the given order; see `Domain` for what it can do.

    Args:
        domain: All of it.
        keys: Positions in it.
    """

    def __init__(self, domain: Domain, keys: Sequence[int]) -> None:
        self._domain, self._keys = domain, torch.tensor(keys, dtype=torch.int64)
        self.classes, self.unreadable = domain.classes, domain.unreadable
        self.labels = domain.labels[self._keys.numpy()]
        self.description = {**domain.description, "n": len(keys)}

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._keys)

    def batches(self, picks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels for each row of positions."""
        return self._domain.batches([self._keys[batch] for batch in picks])

    def readable(self) -> list[int]:
        """Return the positions of the images that can be read."""
        good = set(self._domain.readable())
        return [place for place, key in enumerate(self._keys.tolist()) if key in good]

    def digest(self, keys: Sequence[int]) -> str:
        """Return the SHA-256 of the images at these positions and of their labels."""
        return self._domain.digest(self._keys[list(keys)].tolist())
