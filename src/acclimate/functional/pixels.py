"""Dense predictions: as rows and as maps, their masks, and the loss between both.

A map has the classes (or features) in its second dimension, (N, C, h, w). As *rows*, (N·h·w, C),
it looks like the predictions of as many samples, and functions for samples can be used. Masks
contain class numbers, (N, H, W), and a special label for pixels to ignore.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.precision import at_least_float32

#: Label of pixels to ignore in masks; that of Cityscapes and most other data sets.
IGNORE_LABEL = 255

_MOST_NAMED = 5


class Grid(NamedTuple):
    """The layout of rows as a batch of maps."""

    n_images: int
    height: int
    width: int

    @classmethod
    def of(cls, maps: Tensor) -> Grid:
        """Return the grid of maps (N, C, h, w)."""
        return cls(len(maps), *maps.shape[2:])


def to_rows(maps: Tensor) -> Tensor:
    """Return maps as rows, image by image: (N, C, h, w) → (N·h·w, C).

    Nothing is copied if the maps are in channels-last format.

    >>> to_rows(torch.tensor([[[[1, 2]], [[3, 4]]]])).tolist()  # two classes, two pixels
    [[1, 3], [2, 4]]
    """
    return maps.permute(0, 2, 3, 1).flatten(0, 2)


def to_maps(rows: Tensor, grid: Grid) -> Tensor:
    """Return rows as maps: (N·h·w, C) → (N, C, h, w)."""
    return rows.reshape(*grid, rows.shape[1]).permute(0, 3, 1, 2)


def resize_maps(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return maps resized to another height and width with bilinear interpolation."""
    if tuple(maps.shape[2:]) == tuple(size):
        return maps
    return F.interpolate(maps, tuple(size), mode="bilinear", align_corners=False)


def resize_masks(y: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return masks (N, H, W) resized to another height and width with the nearest labels."""
    if tuple(y.shape[1:]) == tuple(size):
        return y
    # Single precision represents integers up to 16 million exactly.
    return F.interpolate(y[:, None].float(), tuple(size), mode="nearest-exact")[:, 0].to(y.dtype)


def take_samples(rows: Tensor, n: int, picked: slice) -> Tensor:
    """Return the rows of the picked samples; each of the `n` samples has equally many rows."""
    if len(rows) == n:
        return rows[picked]
    return rows.reshape(n, -1, *rows.shape[1:])[picked].flatten(0, 1)


def sample_rows(
    y: Tensor, is_labelled: Tensor, n_images: int, most: int, generator: torch.Generator
) -> Tensor:
    """Return indices of random labelled rows: up to `most` per class and image.

    `y` has the class numbers of the rows of `n_images` images with equally many rows each.
    """
    rows = is_labelled.nonzero().flatten()
    rows = rows[torch.randperm(len(rows), generator=generator).to(rows.device)]
    images = rows // max(1, len(y) // n_images)
    kinds, order = (images * (int(y.max()) + 1) + y[rows]).sort(stable=True)
    # In sorted order, searchsorted returns the position of the first row of each kind.
    ranks = torch.arange(len(rows), device=rows.device) - torch.searchsorted(kinds, kinds)
    return rows[order[ranks < most]].sort().values


def random_box(
    height: int, width: int, side: int, generator: torch.Generator
) -> tuple[slice, slice]:
    """Return a random square, reduced to the size of the image if it is larger."""
    slices = []
    for size in (height, width):
        length = min(side, size)
        start = int(torch.randint(size - length + 1, (), generator=generator))
        slices.append(slice(start, start + length))
    return slices[0], slices[1]


def image_losses(logits: Tensor, y: Tensor, ignore_label: int = IGNORE_LABEL) -> Tensor:
    """Return the mean cross entropy over the labelled pixels of each image: (N,).

    The logits (N, K, h, w) are resized to the masks (N, H, W). The loss of an image without
    labelled pixels is zero.
    """
    log_p = torch.log_softmax(resize_maps(at_least_float32(logits), y.shape[1:]), dim=1)
    counts = y != ignore_label
    # Uses gather because nll_loss is not deterministic on CUDA for maps.
    each = log_p.gather(1, y.where(counts, 0)[:, None])[:, 0]
    total = each.where(counts, 0).flatten(1).sum(dim=1)
    return -total / counts.flatten(1).sum(dim=1).clamp_min(1)


def count_pixels(
    predicted: Tensor, y: Tensor, n_classes: int, ignore_label: int = IGNORE_LABEL
) -> Tensor:
    """Return the confusion matrix: pixels of each true class (row) and predicted class (column)."""
    counted = y != ignore_label
    pairs = y[counted] * n_classes + predicted[counted]
    return torch.bincount(pairs, minlength=n_classes**2).view(n_classes, n_classes)


def find_ious(counts: Tensor) -> Tensor:
    """Return the intersection over union of each class; NaN if it is neither true nor predicted.

    >>> find_ious(torch.tensor([[1, 1, 0], [0, 2, 0], [0, 0, 0]])).tolist()
    [0.5, 0.6666666666666666, nan]
    """
    hits = counts.diag().double()
    return hits / (counts.sum(0) + counts.sum(1) - counts.diag())


def check_masks(
    y: object,
    size: tuple[int, ...],
    n_classes: int | None = None,
    ignore_label: int = IGNORE_LABEL,
) -> None:
    """Raise BadInput unless `y` are masks of the images' size (N, H, W) with valid class numbers.

    These are below `n_classes`, or the label to ignore; None accepts any.
    """
    if not isinstance(y, Tensor):
        raise BadInput(
            "wrong_type",
            f"Expected masks as a tensor, found {type(y).__name__}.",
            option="y",
            found=type(y).__name__,
        )
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise BadInput(
            "wrong_dtype",
            f"Expected masks of integers, found {y.dtype}. Pass one class number per pixel.",
            found=str(y.dtype).removeprefix("torch."),
        )
    if tuple(y.shape) != tuple(size):
        raise BadInput(
            "wrong_shape",
            f"Expected masks of shape {tuple(size)}, one class number per pixel of each image, "
            f"found {tuple(y.shape)}. Resize masks to the size of their images with nearest "
            "neighbours. Convert one-hot masks with argmax.",
            found=tuple(y.shape),
        )
    if n_classes is None:
        return
    known = (y == ignore_label) | ((y >= 0) & (y < n_classes))
    if not bool(known.all()):
        ids = sorted(set(y[~known].tolist()))
        more = f" (+ {len(ids) - _MOST_NAMED} more)" if len(ids) > _MOST_NAMED else ""
        raise BadInput(
            "wrong_labels",
            f"Expected masks with class numbers from 0 to {n_classes - 1}, since the model has "
            f"{n_classes} logits, and {ignore_label} for pixels without a label, found "
            f"{', '.join(map(str, ids[:_MOST_NAMED]))}{more}. Map the ids of the data set to class "
            "numbers, or pass the label to ignore: ignore_label=<number>.",
            found=tuple(ids),
            n_classes=n_classes,
        )
