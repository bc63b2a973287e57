"""BatchNorm over a batch that several processes share.

PyTorch's own SyncBatchNorm does the like in training, on accelerators only, and exchanges layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from acclimate.functional.processes import Shard


def shared_moments(x: Tensor, correction: int, shard: Shard) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance of each channel over the whole batch, and the count of values.

    Args:
        x: The part of the batch that is here, channels second.
        correction: What the variance's divisor is less than the count.
        shard: Where the rest is.
    """
    variance, mean = torch.var_mean(x, dim=_all_but_channels(x), correction=0)
    count = mean.new_tensor([x.numel() / x.shape[1]])
    # Moments of the parts are put together, for a difference of large sums would lose digits.
    rows = shard.gather(torch.cat([mean, variance, count]))
    counts = rows[:, -1:]
    means, variances = rows[:, :-1].chunk(2, dim=1)
    n = counts.sum()
    mean = (counts * means).sum(dim=0) / n
    spread = (counts * (variances + (means - mean).square())).sum(dim=0)
    return mean, spread / (n - correction).clamp_min(1), n


@contextmanager
def share_statistics(layers: Sequence[_BatchNorm], shard: Shard) -> Iterator[None]:
    """Let BatchNorm layers, in evaluation mode, normalise with the moments of the whole batch.

    A hook normalises what enters a layer; the layer, given mean 0 and variance 1, adds scale and
    shift, and what else it may do, such as an activation. Its buffers come back at the end.
    """
    kept = [(layer, layer.running_mean, layer.running_var) for layer in layers]

    def normalize(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not isinstance(layer, _BatchNorm):
            return inputs
        normal: Tensor = _Normalize.apply(inputs[0], layer.eps, shard)  # type: ignore[no-untyped-call]
        like = layer.weight if layer.weight is not None else normal
        layer.running_mean = like.new_zeros(normal.shape[1])
        layer.running_var = like.new_full((normal.shape[1],), 1 - layer.eps)
        return (normal, *inputs[1:])

    hooks = []
    try:
        hooks = [layer.register_forward_pre_hook(normalize) for layer in layers]
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer, mean, variance in kept:
            layer.running_mean, layer.running_var = mean, variance


class _Normalize(torch.autograd.Function):
    """(x − mean) / sqrt(variance + eps) over the whole batch, of which every process has a part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, shard: Shard) -> Tensor:
        precise = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
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
