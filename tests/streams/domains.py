"""Domains for tests: of samples that can be told apart, and of images for tiny models."""

from __future__ import annotations

import torch

from acclimate.streams import Domain
from acclimate.testing.models import tiny_batches

N_CLASSES = 5


def domain(name, n, seed=0):
    """Samples whose first value is their number in the domain."""
    y = torch.randint(N_CLASSES, (n,), generator=torch.Generator().manual_seed(seed))
    x = torch.arange(n).float()[:, None, None, None].expand(n, 1, 2, 2).clone()
    return Domain(name, x, y)


def numbers(batches):
    return [int(v) for batch in batches for v in batch.x[:, 0, 0, 0]]


def tiny_domains(*names, n=24):
    """Images for the tiny models, each domain brighter than the one before; "a" and "b" if none."""
    made = []
    for seed, name in enumerate(names or ("a", "b")):
        x, y = (torch.cat(parts)[:n] for parts in zip(*tiny_batches(3, 8, seed), strict=True))
        made.append(Domain(name, x * (0.4 + 0.3 * seed), y))
    return made
