"""BatchNorm over a batch that several processes share.

PyTorch's own SyncBatchNorm works in training mode and on accelerators only, and replaces layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from acclimate.functional.across import Shard
from acclimate.functional.precision import at_least_float32


def shared_moments(x: Tensor, correction: int, shard: Shard) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance of each channel over the whole batch, and the number of values."""
    variance, mean = torch.var_mean(x, dim=_all_but_channels(x), correction=0)
    count = mean.new_tensor([x.numel() / x.shape[1]])
    # Combine the moments of the parts, because a difference of large sums would lose digits.
    rows = shard.gather(torch.cat([mean, variance, count]))
    counts = rows[:, -1:]
    means, variances = rows[:, :-1].chunk(2, dim=1)
    n = counts.sum()
    mean = (counts * means).sum(dim=0) / n
    spread = (counts * (variances + (means - mean).square())).sum(dim=0)
    return mean, spread / (n - correction).clamp_min(1), n


class Normalize(torch.autograd.Function):
    """(x − mean) / sqrt(variance + eps) over the whole batch, which the processes share."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, shard: Shard) -> Tensor:
        precise = at_least_float32(x)
        mean, variance, n = shared_moments(precise, 0, shard)
        scale = _along_channels(torch.rsqrt(variance + eps), x)
        normal = ((precise - _along_channels(mean, x)) * scale).to(x.dtype)
        ctx.shard = shard
        ctx.save_for_backward(normal, scale, n)
        return normal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        normal, scale, n = ctx.saved_tensors
        axes = _all_but_channels(normal)
        gradient, precise = gradients[0].to(scale.dtype), normal.to(scale.dtype)
        sums = torch.stack([gradient.sum(axes), (gradient * precise).sum(axes)])
        of_mean, of_variance = (_along_channels(s, normal) for s in ctx.shard.sum(sums) / n)
        result = scale * (gradient - of_mean - precise * of_variance)
        return result.to(normal.dtype), None, None


def _all_but_channels(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]


def _along_channels(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.dim() - 2))
