"""Measures of predictions of every pixel: which class was taken for which, and how they overlap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.pixels import count_pixels, find_ious
from acclimate.measures.accumulator import Measures
from acclimate.measures.calibration import Array
from acclimate.measures.plain import to_plain


class PixelMeasures(Measures):
    """What is known of the predictions for some pixels; a pixel is a sample.

    >>> import torch
    >>> measures = PixelMeasures(n_classes=3)
    >>> measures.update(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 1, 1]))
    >>> measures.iou_by_class, measures.miou
    ({0: 0.5, 1: 0.5}, 0.5)

    Attributes:
        confusion: How many pixels of each true class (row) were taken for which (column).
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__(n_classes)
        self.confusion: Array = np.zeros((n_classes, n_classes), np.int64)

    def update(self, logits: Tensor, y: Tensor) -> None:
        """Take in the predictions of pixels (rows, K), and their labels (rows,).

        Raises:
            BadInput: The labels do not fit; nothing was counted.
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
        """Mean of the classes' intersections over unions.

        Classes that occur neither in truth nor in predictions have none, and are left out.
        """
        shares = self.iou_by_class.values()
        if not shares:
            raise BadInput(
                "no_samples_measured",
                "expected measures of some pixels, found none: update them first.",
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
        """Return the measures that `to_dict` wrote.

        Raises:
            BadInput: Something is missing or was written with another histogram.
        """
        made = super().from_dict(packed)
        made.confusion = np.array(packed["confusion"], np.int64)
        return made
