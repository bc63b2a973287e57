"""Sums over dense predictions: the confusion matrix and the overlap of classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.pixels import count_pixels, find_ious
from acclimate.metrics.calibration import Array
from acclimate.metrics.plain import to_plain
from acclimate.metrics.sums import Sums


class PixelSums(Sums):
    """Sums over the predictions of some pixels; a pixel is a sample.

    >>> import torch
    >>> sums = PixelSums(n_classes=3)
    >>> sums.update(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 1, 1]))
    >>> sums.iou_by_class, sums.miou
    ({0: 0.5, 1: 0.5}, 0.5)

    Attributes:
        confusion: Number of pixels of each true class (row) and predicted class (column).
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__(n_classes)
        self.confusion: Array = np.zeros((n_classes, n_classes), np.int64)

    def update(self, logits: Tensor, y: Tensor) -> None:
        """Add the predictions of pixels (rows, K) and their labels (rows,).

        Raises:
            BadInput: The labels do not fit. Nothing was added.
        """
        super().update(logits, y)
        given = logits.argmax(1).cpu()
        self.confusion += count_pixels(given, y.cpu().long(), self.n_classes).numpy()

    @property
    def iou_by_class(self) -> dict[int, float]:
        """Intersection over union of each class that occurs in truth or predictions."""
        shares = find_ious(torch.from_numpy(self.confusion)).tolist()
        return {k: share for k, share in enumerate(shares) if not math.isnan(share)}

    @property
    def miou(self) -> float:
        """Mean intersection over union of the classes.

        Classes that occur neither in truth nor in predictions are excluded.
        """
        shares = self.iou_by_class.values()
        if not shares:
            raise BadInput(
                "no_samples_measured",
                "Expected sums over at least one pixel, found none. Call update() first.",
            )
        return sum(shares) / len(shares)

    @property
    def pixel_accuracy(self) -> float:
        """Share of pixels that were predicted correctly."""
        return 1.0 - self.error

    def summary(self) -> dict[str, Any]:
        """Return the means as JSON types; errors are shares from 0 to 1."""
        own = {name: getattr(self, name) for name in ("miou", "pixel_accuracy", "iou_by_class")}
        return {**super().summary(), **to_plain(own)}

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON types."""
        return {**super().to_dict(), "confusion": self.confusion.tolist()}

    @classmethod
    def from_dict(cls, packed: Mapping[str, Any]) -> Self:
        """Build sums from the result of `to_dict`.

        Raises:
            BadInput: Fields are missing, or the histogram has another number of bins.
        """
        made = super().from_dict(packed)
        made.confusion = np.array(packed["confusion"], np.int64)
        return made
