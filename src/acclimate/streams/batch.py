"""Domains, batches and streams for evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.inputs import Normalization


def to_inputs(
    pixels: npt.NDArray[np.uint8],
    normalization: Normalization | None = None,
    channels_last: bool = False,
) -> Tensor:
    """Return 8-bit images (n, height, width, 3) as inputs (n, 3, height, width) of a model."""
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    x = (x if channels_last else x.contiguous()).float() / 255
    return x if normalization is None else normalization.normalize(x)


@dataclass(frozen=True)
class Domain:
    """One kind of shift: a name, and all of its samples.

    Attributes:
        name: The name in tables.
        x: Inputs: a tensor, or an array of 8-bit images (n, height, width, 3), which may be mapped
            from a file; it is converted to tensors in [0, 1] batch by batch.
        y: Class numbers (n,), or masks (n, height, width) for models that predict every pixel.
    """

    name: str
    x: Any
    y: Any

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            n, found = len(self.x), len(self.y)
            text = f"Domain {self.name}: Expected {n} labels, one per sample, found {found}."
            raise BadInput("count_mismatch", text, expected=n, found=found)
        if not isinstance(self.x, Tensor) and getattr(self.x, "dtype", None) != np.uint8:
            kind = type(self.x).__name__
            text = (
                f"Domain {self.name}: Expected a tensor or an array of 8-bit images, found {kind}."
            )
            raise BadInput("wrong_type", text, option="x", found=kind)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def labels(self) -> Tensor:
        """All labels, one class per sample; masks are refused: samples cannot be sorted by them."""
        if len(getattr(self.y, "shape", ())) > 1:
            shape = tuple(self.y.shape)
            text = (
                f"Domain {self.name}: Expected one class per sample, to sort samples by, found "
                f"masks of shape {shape}. Use a scenario that does not use labels, such as "
                "reset_each, continual, gradual or mixed."
            )
            raise BadInput("wrong_shape", text, found=shape)
        # Copied, because an array mapped from a file is read-only and a tensor is not.
        return torch.tensor(np.asarray(self.y), dtype=torch.int64)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples with these indices, and their labels."""
        numbers = indices.numpy()
        # Read only the chosen labels: masks may be large and mapped from a file.
        chosen = self.y[numbers] if hasattr(self.y, "shape") else np.asarray(self.y)[numbers]
        y = torch.tensor(np.asarray(chosen), dtype=torch.int64)
        if isinstance(self.x, Tensor):
            return self.x[indices], y
        return to_inputs(np.asarray(self.x[numbers])), y

    def blank(self, n: int | None = None) -> Domain:
        """Return samples without images and masks, to count batches: as many, or so many others."""
        y = self.y
        if n is not None or getattr(y, "ndim", 1) > 1:
            n = len(self) if n is None else n
            y = np.broadcast_to(np.uint8(0), (n, 1, 1))
        return Domain(self.name, torch.zeros(1).expand(len(y), 1, 1, 1), y)

    def value_range(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and the highest value of a pixel, for each channel.

        They are 0 and 1 for images in [0, 1]; of normalised images, those that occur.
        """
        if not isinstance(self.x, Tensor):
            return torch.tensor(0.0), torch.tensor(1.0)
        if bool((self.x >= 0).all()) and bool((self.x <= 1).all()):
            return self.x.new_tensor(0), self.x.new_tensor(1)
        rest = [0, *range(2, self.x.dim())]
        low, high = self.x.amin(rest, keepdim=True), self.x.amax(rest, keepdim=True)
        return low[0], high[0]


@dataclass(frozen=True)
class Batch:
    """Inputs, their labels and their kind of shift. Only `x` is passed to a method.

    Attributes:
        x: Inputs.
        y: Class numbers or masks, for the evaluation only.
        domain: Name of the shift. If a batch has several, `domains` has their names.
        reset: Whether the method is reset before this batch.
        learns: Whether the method may learn from it; a probe is only predicted.
        domains: The shift of each sample, if a batch mixes several.
        n_new: Number of samples at the end that count; the others were in an earlier batch.
        epoch: Number of the pass over the stream, from 1.
        counted: For each sample whether its prediction counts; None if all do. The others are
            predicted and learned from, but no measure contains them, and their labels may be any.
    """

    x: Tensor
    y: Tensor
    domain: str
    reset: bool = False
    learns: bool = True
    domains: tuple[str, ...] = ()
    n_new: int | None = None
    epoch: int = 1
    counted: Tensor | None = None


@dataclass(frozen=True)
class Stream:
    """Ordered batches that can be iterated repeatedly, and their protocol.

    Attributes:
        protocol: One line that describes scenario, domains, order, batch size and resets.
        make: Returns the batches from the start.
    """

    protocol: str
    make: Callable[[], Iterator[Batch]]

    def __iter__(self) -> Iterator[Batch]:
        return self.make()

    def __str__(self) -> str:
        return self.protocol
