"""One batch of a stream."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Inputs, their labels and the kind of shift they show; only `x` ever reaches a method.

    Attributes:
        x: Inputs.
        y: Class numbers, for the evaluation only.
        domain: Name of the shift.
        reset: Whether the method is to be reset before this batch.
    """

    x: Tensor
    y: Tensor
    domain: str
    reset: bool = False
