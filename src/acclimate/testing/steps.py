"""Helper functions for the checks of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from acclimate.forward import get_logits
from acclimate.methods.method import Method
from acclimate.snapshot import flatten_tree
from acclimate.testing.cases import Violation
from acclimate.testing.dense_models import N_CLASSES, TinyDeepLab
from acclimate.testing.models import tiny_batches


def require(holds: bool, message: str) -> None:
    """Raise a violation unless the condition holds."""
    if not holds:
        raise Violation(message)


def make_stream(n: int = 3) -> list[Tensor]:
    """Return the inputs of a short stream."""
    return [x for x, _ in tiny_batches(n, seed=7)]


def call(adapted: Method, x: Tensor) -> Any:
    """Call the adapted model; reveal arbitrary labels to an oracle first."""
    if adapted.card.is_oracle:
        y = torch.arange(len(x)) % N_CLASSES
        if x.dim() == 4 and isinstance(getattr(adapted, "model", None), TinyDeepLab):
            y = y[:, None, None].expand(-1, *x.shape[2:]).contiguous()
        adapted.reveal(y)
    return adapted(x)


def run_stream(adapted: Method, xs: Sequence[Tensor]) -> list[Tensor]:
    """Return the logits of every batch of a stream."""
    outputs = [call(adapted, x) for x in xs]
    return [
        get_logits(out, None if isinstance(out, Tensor) else adapted.logits_at) for out in outputs
    ]


def equal(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Return whether two lists of tensors are equal bit for bit."""
    return len(left) == len(right) and all(map(torch.equal, left, right))


def take_state(adapted: Method) -> dict[str, Tensor]:
    """Return a copy of everything an adapted model has learned."""
    return {name: t.clone() for name, t in flatten_tree(adapted._tree())[0].items()}


def same_state(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Return whether two states are equal bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)
