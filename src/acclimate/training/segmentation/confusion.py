"""How often pixels of each class are given each class, and what follows from it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.data.masks import IGNORE


def enlarge(logits: Tensor, y: Tensor) -> Tensor:
    """Return logits at the size of the labels, interpolated bilinearly."""
    if logits.shape[2:] == y.shape[1:]:
        return logits
    return F.interpolate(logits, y.shape[1:], mode="bilinear", align_corners=False)


def count_pixels(predicted: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """Return how many pixels of each class (row) were given each class (column), exactly.

    Args:
        predicted: Class numbers, any shape.
        y: Of the same shape; ignored pixels count nowhere.
        n_classes: Number of classes.
    """
    counted = y != IGNORE
    pairs = y[counted] * n_classes + predicted[counted]
    return torch.bincount(pairs, minlength=n_classes**2).view(n_classes, n_classes)


def find_ious(counts: Tensor) -> Tensor:
    """Return the intersection over union of each class; NaN where it neither is nor was given."""
    hits = counts.diag().double()
    return hits / (counts.sum(0) + counts.sum(1) - counts.diag())
