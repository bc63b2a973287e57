"""Domains, batches and streams: what an evaluation runs over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.errors import BadInput


@dataclass(frozen=True)
class Domain:
    """One kind of shift: a name, and all samples that show it.

    Attributes:
        name: What tables call it.
        x: Inputs: a tensor, or an array of 8-bit images (n, height, width, 3), which may be mapped
            from a file; it is turned into tensors in [0, 1] batch by batch.
        y: Class numbers (n,), or masks (n, height, width) where every pixel is predicted.
    """

    name: str
    x: Any
    y: Any

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise BadInput(
                "count_mismatch",
                f"{self.name}: {len(self.x)} samples, but {len(self.y)} labels.",
                expected=len(self.x),
                found=len(self.y),
            )
        if not isinstance(self.x, Tensor) and getattr(self.x, "dtype", None) != np.uint8:
            raise BadInput(
                "wrong_type",
                f"{self.name}: expected a tensor or an array of 8-bit images, found "
                f"{type(self.x).__name__}.",
                option="x",
                found=type(self.x).__name__,
            )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def labels(self) -> Tensor:
        """All labels, one class a sample.

        Raises:
            BadInput: They are masks, by which samples cannot be put in order.
        """
        if len(getattr(self.y, "shape", ())) > 1:
            raise BadInput(
                "wrong_shape",
                f"{self.name}: expected one class a sample, to order samples by, found masks of "
                f"shape {tuple(self.y.shape)}. Use a scenario that does not look at labels, such "
                "as reset_each, continual, gradual or mixed.",
                found=tuple(self.y.shape),
            )
        # Copied: an array mapped from a file is read-only, which tensors cannot be.
        return torch.tensor(np.asarray(self.y), dtype=torch.int64)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return these samples and their labels."""
        numbers = indices.numpy()
        # Only those that are taken: masks may be many, and mapped from a file.
        chosen = self.y[numbers] if hasattr(self.y, "shape") else np.asarray(self.y)[numbers]
        y = torch.tensor(np.asarray(chosen), dtype=torch.int64)
        if isinstance(self.x, Tensor):
            return self.x[indices], y
        images = np.ascontiguousarray(self.x[numbers].transpose(0, 3, 1, 2))
        return torch.from_numpy(images).float() / 255, y


@dataclass(frozen=True)
class Batch:
    """Inputs, their labels and the kind of shift they show; only `x` ever reaches a method.

    Attributes:
        x: Inputs.
        y: Class numbers or masks, for the evaluation only.
        domain: Name of the shift; of several in one batch, their names are in `domains`.
        reset: Whether the method is to be reset before this batch.
        learns: Whether the method may learn from it; a probe is only predicted.
        domains: The shift of each sample, where a batch mixes them.
        n_new: How many samples, from the end, count; the others were in an earlier batch already.
        epoch: Which pass over the stream this is, from 1.
    """

    x: Tensor
    y: Tensor
    domain: str
    reset: bool = False
    learns: bool = True
    domains: tuple[str, ...] = ()
    n_new: int | None = None
    epoch: int = 1


@dataclass(frozen=True)
class Stream:
    """Batches in order, as often as they are asked for, and the protocol they follow.

    Attributes:
        protocol: One line that says what was done: scenario, domains, order, batch size, resets.
        make: Returns the batches from the start.
    """

    protocol: str
    make: Callable[[], Iterator[Batch]]

    def __iter__(self) -> Iterator[Batch]:
        return self.make()

    def __str__(self) -> str:
        return self.protocol
