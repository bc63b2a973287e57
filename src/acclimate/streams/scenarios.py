"""Scenarios: pure functions from domains to a stream of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.streams.batch import Batch


@dataclass(frozen=True)
class Domain:
    """One kind of shift: a name, and all samples that show it."""

    name: str
    x: Tensor
    y: Tensor


def reset_each(
    domains: Sequence[Domain], batch_size: int = 200, seed: int | None = None
) -> Iterator[Batch]:
    """Yield every domain in turn, with a reset before its first batch.

    Args:
        domains: In the order in which they come.
        batch_size: Samples a batch; the last of a domain may be smaller.
        seed: Of the order of samples within a domain; None keeps their own order.
    """
    if batch_size < 1:
        raise BadInput(f"expected a batch size of at least 1, found {batch_size}.")
    for domain in domains:
        n = len(domain.x)
        if len(domain.y) != n:
            raise BadInput(f"{domain.name}: {n} samples, but {len(domain.y)} labels.")
        order = (
            torch.arange(n)
            if seed is None
            else torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        )
        for start in range(0, n, batch_size):
            chosen = order[start : start + batch_size]
            yield Batch(domain.x[chosen], domain.y[chosen], domain.name, reset=start == 0)
