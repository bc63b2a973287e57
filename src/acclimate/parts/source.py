"""Source data: checked batches, on the model's device, as often as needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from acclimate.errors import BadInput
from acclimate.forward import Call
from acclimate.functional.inputs import check_images
from acclimate.functional.pixels import Grid, check_masks, resize_masks
from acclimate.introspect import ModelInfo
from acclimate.progress import Progress

#: What labels are called in batches that are dicts.
LABELS = ("labels", "label", "targets", "target", "y")


class SourceData:
    """Labelled source batches `(x, y)`, checked and moved to the model's device.

    Labels are class numbers (N,) if `ignore_label` is None. Otherwise they are masks (N, H, W) with
    that value where there is no label. `progress` is called after every batch.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        info: ModelInfo,
        device: torch.device,
        progress: Progress | None = None,
        ignore_label: int | None = None,
    ) -> None:
        self._batches = batches
        self._device = device
        self._images_at = info.images_at
        self.n_classes = info.known_classes
        self.normalization = info.normalization
        self.progress = progress
        self.ignore_label = ignore_label

    def iterate(self, stage: str, report: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through the source once."""
        total = _count(self._batches)
        for number, batch in enumerate(self._batches, 1):
            call, y = split_batch(batch, self._images_at)
            x: Tensor = call.images
            check_images(x, self.normalization)
            self._check_labels(x, y)
            yield x.to(self._device), y.to(self._device)
            if report and self.progress is not None:
                self.progress(stage, number, total)

    def label_rows(self, y: Tensor, grid: Grid | None) -> tuple[Tensor, Tensor]:
        """Return the labels of rows, and which of the rows have one.

        The grid tells where rows are in maps, whose size masks are brought to; None for samples.
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
                f"Expected labels as whole numbers of shape ({len(x)},), found {y.dtype} of shape "
                f"{tuple(y.shape)}. Give class numbers, not one-hot vectors."
            )
            if y.is_floating_point():
                found = str(y.dtype).removeprefix("torch.")
                raise BadInput("wrong_dtype", text, found=found)
            raise BadInput("wrong_shape", text, found=tuple(y.shape))
        check_numbers(set(y.tolist()), self.n_classes)


def iterate_blocks(
    source: SourceData, stage: str, n_samples: int, size: int
) -> Iterator[tuple[Tensor, ...]]:
    """Regroup the source's first samples into blocks of one size; the last may be smaller."""
    return regroup(take_first(source.iterate(stage, report=False), n_samples), size)


def take_first(batches: Iterable[tuple[Tensor, Tensor]], n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches up to the `n`-th sample."""
    for x, y in batches:
        yield x[:n], y[:n]
        n -= len(x)
        if n <= 0:
            return


def regroup(batches: Iterable[tuple[Tensor, ...]], size: int) -> Iterator[tuple[Tensor, ...]]:
    """Regroup samples into blocks of one size; the last may be smaller."""
    held: list[tuple[Tensor, ...]] = []
    n_held = 0
    for batch in batches:
        held.append(batch)
        n_held += len(batch[0])
        while n_held >= size:
            together = [torch.cat(parts) for parts in zip(*held, strict=True)]
            yield tuple(part[:size] for part in together)
            held = [tuple(part[size:] for part in together)]
            n_held -= size
    if n_held:
        yield tuple(torch.cat(parts) for parts in zip(*held, strict=True))


def split_batch(batch: Any, images_at: str | int | None = None) -> tuple[Call, Tensor]:
    """Return how the model is called with the images of a source batch, and the labels.

    A batch is a pair `(x, y)`, or a dict of the model's inputs and `labels`. If the model takes a
    dict, `x` is that dict. `images_at` says where the images are if it cannot be told.
    """
    call, y = None, None
    if isinstance(batch, tuple | list) and len(batch) >= 2:
        x, y = batch[0], batch[1]
        if isinstance(x, Tensor | Mapping):
            call = Call.of((x,), {}, images_at)
        elif isinstance(x, tuple | list) and any(isinstance(item, Tensor) for item in x):
            call = Call.of(tuple(x), {}, images_at)
    elif isinstance(batch, Mapping):
        y = next((batch[name] for name in LABELS if isinstance(batch.get(name), Tensor)), None)
        inputs = {k: v for k, v in batch.items() if isinstance(v, Tensor) and k not in LABELS}
        call = Call.of((), inputs, images_at) if inputs else None
    if call is None or not isinstance(y, Tensor):
        raise BadInput(
            "wrong_type",
            f"Expected source batches (x, y) of tensors, or dicts with images and labels, found "
            f"{_describe(batch)}. Pass a DataLoader over (image, label) pairs.",
            option="batch",
            found=type(batch).__name__,
        )
    if others := tuple(call.list_others()):
        raise BadInput(
            "extra_inputs",
            f"The source batches contain other inputs ({', '.join(others)}) besides images and "
            "labels. Preparing regroups images, so that other inputs of the model cannot be passed "
            "along. Pass batches of images and labels alone.",
            inputs=others,
        )
    return call, y if y.is_floating_point() else y.long()


def check_labelled(n: int) -> None:
    """Refuse masks without any labelled pixel."""
    if n == 0:
        raise BadInput(
            "no_labelled_pixels",
            "Expected masks with labelled pixels, found none. Check the masks and ignore_label.",
        )


def _describe(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a dict with {', '.join(map(str, batch)) or 'nothing in it'}"
    if isinstance(batch, tuple | list):
        return f"a {type(batch).__name__} of {', '.join(type(item).__name__ for item in batch)}"
    return f"a {type(batch).__name__}"


def check_numbers(labels: set[int], n_classes: int) -> None:
    """Refuse labels that do not number the classes of the model."""
    wrong = sorted(label for label in labels if not 0 <= label < n_classes)
    if wrong:
        raise BadInput(
            "wrong_labels",
            f"Expected labels from 0 to {n_classes - 1}, as the model has {n_classes} logits, "
            f"found {min(labels)} to {max(labels)}. Map them to class numbers.",
            found=tuple(wrong),
            n_classes=n_classes,
        )


def find_labels(
    source: Iterable[Any], images_at: str | int | None = None
) -> tuple[set[int] | None, int | None]:
    """Return the labels that can be seen without reading images, and how many images there are.

    Either is None if it cannot be told. Labels are seen in lists of batches, in data sets of
    torchvision's kind, with `targets`, and in tensor data sets, also in parts of such data sets.
    """
    if isinstance(source, list | tuple):
        batches = [split_batch(batch, images_at) for batch in source]
        if any(y.shape != call.images.shape[:1] or y.is_floating_point() for call, y in batches):
            return None, None  # which are masks, or labels that are refused later
        labels = [label for _, y in batches for label in y.tolist()]
        return set(labels), len(labels)
    data = getattr(source, "dataset", None)
    counts = [n for n in (_count(data), _count(getattr(source, "sampler", None))) if n is not None]
    found = _labels_of(data)
    return None if found is None else set(found), min(counts, default=None)


def _labels_of(data: Any) -> list[int] | None:
    """Return the labels of all samples of a data set in its order; None if they cannot be seen."""
    if isinstance(data, Subset):
        found = _labels_of(data.dataset)
        return None if found is None else [found[position] for position in data.indices]
    if isinstance(data, ConcatDataset):
        parts = [_labels_of(part) for part in data.datasets]
        known = [part for part in parts if part is not None]
        return [y for part in known for y in part] if len(known) == len(parts) else None
    if isinstance(data, TensorDataset):
        targets: Any = data.tensors[1] if len(data.tensors) > 1 else None
    else:
        targets = getattr(data, "targets", None)
    is_changed = getattr(data, "target_transform", None) is not None
    values = targets.tolist() if hasattr(targets, "tolist") else targets
    if is_changed or not isinstance(values, list | tuple) or len(values) != _count(data):
        return None
    with suppress(TypeError):  # masks, boxes and one-hot vectors are no class numbers
        return [index(value) for value in values]
    return None


def _count(items: Any) -> int | None:
    """Return how many items there are; None if it cannot be told."""
    try:
        return len(items) if isinstance(items, Sized) else None
    except TypeError:  # a DataLoader over a stream has a length by its type only
        return None


def check_reiterable(source: Any) -> None:
    """Refuse a source that can be read only once: preparing needs several passes."""
    if not isinstance(source, Iterable):
        raise BadInput(
            "wrong_type",
            f"Expected a source of (x, y) batches, found {type(source).__name__}. "
            "Give a DataLoader or a list of batches.",
            option="source",
            found=type(source).__name__,
        )
    if isinstance(source, Iterator):
        raise BadInput(
            "not_repeatable",
            "The source is an iterator, which can be read only once, and preparing needs several "
            "passes. Give the DataLoader itself, or list(...) of it.",
        )
