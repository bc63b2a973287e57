"""The size of a batch, its means and its random numbers, also if several processes share it.

While a batch is shared (`Processes.share`), these functions speak of all its samples, and get those
of one process. Otherwise they are what they look like (`batch_mean(x)` is `x.mean(0)`), and cost
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from acclimate.functional.processes import active


def batch_size(x: Tensor) -> int:
    """Return the number of samples in the whole batch, of which `x` are those at hand."""
    shard = active()
    if shard is None:
        return len(x)
    shard.rows(len(x))
    return shard.n


def batch_mean(x: Tensor) -> Tensor:
    """Return the mean over the samples of the whole batch, of which `x` has one in each row."""
    shard = active()
    if shard is None:
        return x.mean(dim=0)
    n = batch_size(x)
    return shard.sum(x.sum(dim=0)) / n


def batch_logsumexp(x: Tensor) -> Tensor:
    """Return the logarithm of the sum of exponentials over the samples of the whole batch."""
    shard = active()
    here = torch.logsumexp(x, dim=0)
    if shard is None:
        return here
    shard.rows(len(x))
    return torch.logsumexp(shard.gather(here), dim=0)


def batch_rand(n: int, n_columns: int, generator: torch.Generator) -> Tensor:
    """Return random numbers for `n` samples at hand, (n, n_columns), in double precision.

    A sample's numbers depend on its place in the whole batch and not on where it is processed, and
    the generator advances alike on all processes.
    """
    shard = active()
    if shard is None:
        return torch.rand(n, n_columns, generator=generator, dtype=torch.float64)
    rows = shard.rows(n)
    return torch.rand(shard.n, n_columns, generator=generator, dtype=torch.float64)[rows]


def everywhere(flag: Tensor) -> bool:
    """Say whether a condition holds on all processes that share the batch."""
    shard = active()
    return bool(flag) if shard is None else not bool(shard.sum((~flag).int()))


def average(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return gradients averaged over the processes that share the batch, in few exchanges."""
    shard = active()
    result = list(gradients)
    if shard is None:
        return result
    known = [(index, tensor) for index, tensor in enumerate(gradients) if tensor is not None]
    for kind in sorted({(str(t.dtype), str(t.device)) for _, t in known}):
        bucket = [(i, t) for i, t in known if (str(t.dtype), str(t.device)) == kind]
        flat = torch.cat([tensor.detach().reshape(-1) for _, tensor in bucket])
        # Sums of half-precision numbers are rounded once, at the end.
        flat = shard.sum(_at_least_single(flat)).div_(shard.processes.count).to(flat.dtype)
        parts = flat.split_with_sizes([tensor.numel() for _, tensor in bucket])
        for (index, tensor), part in zip(bucket, parts, strict=True):
            result[index] = part.view(tensor.shape)
    return result


def _at_least_single(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
