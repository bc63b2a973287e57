"""Random draws that depend on their place in the run alone, never on what was drawn before.

A run can therefore be cut anywhere and gone on with: there is no state of a generator to keep.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def seed_of(seed: int, purpose: str, *place: int) -> int:
    """Return a seed for one purpose at one place of a run.

    >>> seed_of(0, "order", 3) == seed_of(0, "order", 3) != seed_of(0, "order", 4)
    True
    """
    text = "/".join([purpose, *map(str, (seed, *place))])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator_at(seed: int, purpose: str, *place: int) -> torch.Generator:
    """Return a generator on the CPU for one purpose at one place of a run."""
    return torch.Generator().manual_seed(seed_of(seed, purpose, *place))


def batch_order(n: int, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """Return which images each step of an epoch takes.

    What does not fill a batch is left out, other images in every epoch; if all images together do
    not fill one, they are the only batch.

    Args:
        n: Number of images.
        batch_size: Images a step.
        seed: Of the run.
        epoch: From 0.
    """
    order = torch.randperm(n, generator=generator_at(seed, "order", epoch))
    if n < batch_size:
        return [order]
    return list(torch.split(order[: n - n % batch_size], batch_size))
