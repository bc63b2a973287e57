"""The source data's one door: checked batches, on the model's device, as often as needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.inputs import Normalization, check_images
from acclimate.functional.pixels import Grid, check_masks, resize_masks

#: Called with the stage, what is done, and what is to do (None if unknown).
Progress = Callable[[str, int, int | None], None]


class Source:
    """Labelled source batches `(x, y)`, checked and moved to the model's device.

    Args:
        batches: Anything that can be iterated over several times, such as a DataLoader.
        n_classes: Labels must be below it.
        device: Of the model.
        normalization: Of the inputs; None for images in [0, 1].
        progress: Told about every batch.
        ignore_label: What masks hold where there is no label, if labels are masks (N, H, W), as for
            a model that predicts every pixel; None if they are class numbers (N,).
    """

    def __init__(
        self,
        batches: Iterable[Any],
        n_classes: int,
        device: torch.device,
        normalization: Normalization | None = None,
        progress: Progress | None = None,
        ignore_label: int | None = None,
    ) -> None:
        self._batches = batches
        self._device = device
        self.n_classes = n_classes
        self.normalization = normalization
        self.progress = progress
        self.ignore_label = ignore_label

    def iterate(self, stage: str, report: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through the source once."""
        total = len(self._batches) if isinstance(self._batches, Sized) else None
        for index, batch in enumerate(self._batches):
            x, y = split_batch(batch)
            check_images(x, self.normalization)
            self._check_labels(x, y)
            yield x.to(self._device), y.to(self._device)
            if report and self.progress is not None:
                self.progress(stage, index + 1, total)

    def label_rows(self, y: Tensor, grid: Grid | None) -> tuple[Tensor, Tensor]:
        """Return the labels of rows, and which of the rows have one.

        Args:
            y: Class numbers, or masks.
            grid: Where rows are in maps, whose size the masks are brought to; None for samples.
        """
        if grid is None or self.ignore_label is None:
            return y, torch.ones_like(y, dtype=torch.bool)
        y = resize_masks(y, grid[1:]).flatten()
        return y, y != self.ignore_label

    def _check_labels(self, x: Tensor, y: Tensor) -> None:
        if self.ignore_label is not None:
            check_masks(y, (len(x), *x.shape[2:]), self.n_classes, self.ignore_label)
            return
        if y.dim() != 1 or len(y) != len(x) or y.is_floating_point():
            text = (
                f"expected labels as whole numbers of shape ({len(x)},), found {y.dtype} of shape "
                f"{tuple(y.shape)}. Give class numbers, not one-hot vectors."
            )
            if y.is_floating_point():
                found = str(y.dtype).removeprefix("torch.")
                raise BadInput("wrong_dtype", text, found=found)
            raise BadInput("wrong_shape", text, found=tuple(y.shape))
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= self.n_classes:
            raise BadInput(
                "wrong_labels",
                f"expected labels from 0 to {self.n_classes - 1}, as the model has "
                f"{self.n_classes} logits; found {low} to {high}. Map them to class numbers.",
                found=tuple(sorted(set(y[(y < 0) | (y >= self.n_classes)].tolist()))),
                n_classes=self.n_classes,
            )


def iterate_blocks(
    source: Source, stage: str, n_samples: int, size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Regroup the source's first samples into blocks of one size; the last may be smaller."""
    held_x: list[Tensor] = []
    held_y: list[Tensor] = []
    held, left = 0, n_samples
    for x, y in source.iterate(stage, report=False):
        held_x.append(x[:left])
        held_y.append(y[:left])
        held += len(held_x[-1])
        left -= len(held_x[-1])
        while held >= size or (left == 0 and held):
            all_x, all_y = torch.cat(held_x), torch.cat(held_y)
            yield all_x[:size], all_y[:size]
            held_x, held_y = [all_x[size:]], [all_y[size:]]
            held = len(held_x[0])
        if left == 0:
            return
    if held:
        yield torch.cat(held_x), torch.cat(held_y)


def split_batch(batch: Any) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of one source batch."""
    if isinstance(batch, tuple | list) and len(batch) >= 2:
        x, y = batch[0], batch[1]
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            return x, y.long() if not y.is_floating_point() else y
    raise BadInput(
        "wrong_type",
        f"expected source batches (x, y) of tensors, found {type(batch).__name__}. "
        "Give a DataLoader over (image, label) pairs.",
        option="batch",
        found=type(batch).__name__,
    )


def check_reiterable(source: Any) -> None:
    """Refuse a source that can be read only once: preparing needs several passes."""
    if not isinstance(source, Iterable):
        raise BadInput(
            "wrong_type",
            f"expected a source of (x, y) batches, found {type(source).__name__}. "
            "Give a DataLoader or a list of batches.",
            option="source",
            found=type(source).__name__,
        )
    if isinstance(source, Iterator):
        raise BadInput(
            "not_repeatable",
            "the source is an iterator, which can be read only once, and preparing needs several "
            "passes. Give the DataLoader itself, or list(...) of it.",
        )
