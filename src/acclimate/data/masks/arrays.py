"""Images with a class for every pixel that are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from acclimate.data.masks.images import stack_pairs
from acclimate.data.masks.pixels import Mask
from acclimate.data.masks.shift import Shift, corrupt_image, describe, name_of
from acclimate.data.masks.specs import Colour
from acclimate.data.places import Progress
from acclimate.streams.batch import Domain
from acclimate.streams.images import Pixels


class ArrayPixels:
    """Images and labels in arrays; see `LabelledPixels` for what they can do.

    Args:
        images: (n, height, width, 3).
        labels: (n, height, width).
        classes: Names in the order of the class numbers.
        palette: The colour of each class.
        description: What a result must say of them.
        shift: What is done to the images.
    """

    def __init__(
        self,
        images: Pixels,
        labels: Mask,
        classes: tuple[str, ...],
        palette: tuple[Colour, ...],
        description: Mapping[str, Any],
        shift: Shift | None = None,
    ) -> None:
        if shift is not None:
            spoiled = [corrupt_image(image, str(i), shift) for i, image in enumerate(images)]
            images = np.stack(spoiled)
        self._images, self._labels, self._shift = images, labels, shift
        self.classes, self.palette = classes, palette
        self.description = {**description, "n": len(images), **describe(shift)}

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._images)

    def batches(self, picks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels for each row of positions."""
        for batch in picks:
            yield stack_pairs(
                [(self._images[index], self._labels[index]) for index in batch.tolist()]
            )

    def verify(self, progress: Progress | None = None, needs_labels: bool = True) -> int:
        """Do nothing: what is made by code has no faults."""
        return 0

    def to_domain(self, name: str | None = None) -> Domain:
        """Return all images and labels; see `LabelledPixels`."""
        return Domain(name or name_of(self._shift), self._images, self._labels)
