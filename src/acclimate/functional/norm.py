"""Normalisation layers: find them, and choose which statistics BatchNorm uses.

The choice is a context manager: inside `use_statistics` the layers use the chosen statistics in any
mode of the model, and afterwards every flag is restored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils.hooks import RemovableHandle

from acclimate.errors import UnsuitableModel, name_some
from acclimate.functional.across import Shard, active
from acclimate.functional.sync_norm import Normalize, shared_moments

Statistics = Literal["batch", "running", "source", "mixed", "robust", "auto"]
STATISTICS: tuple[str, ...] = get_args(Statistics)

Layer = TypeVar("Layer", bound=nn.Module)
NORM_LAYERS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def batch_norm_layers(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the BatchNorm layers by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm)}


def norm_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return scale and shift of every normalisation layer (batch, instance, group, layer, RMS)."""
    owned = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, NORM_LAYERS)
        for parameter in module.parameters(recurse=False)
    }
    return {name: p for name, p in model.named_parameters() if id(p) in owned}


def lower_norm_parameters(model: nn.Module, skip_top: float) -> dict[str, nn.Parameter]:
    """Return scale and shift of the normalisation layers but for a share next to the output.

    Layers count in the order in which the model defines them; the first always moves.
    """
    layers = [module for module in model.modules() if isinstance(module, NORM_LAYERS)]
    owned = [own for layer in layers if (own := list(layer.parameters(recurse=False)))]
    n_kept = max(1, len(owned) - math.floor(skip_top * len(owned) + 0.5))
    kept = {id(parameter) for own in owned[:n_kept] for parameter in own}
    named = norm_parameters(model).items()
    return {name: p for name, p in named if p.requires_grad and id(p) in kept}


def check_independent(model: nn.Module) -> None:
    """Refuse a model in which the output of a sample depends on other samples or on chance."""
    mixing, random = [], []
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            mixing.append(name or "the model")
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
            random.append(name or "the model")
    if not (mixing or random):
        return
    does = "normalise with the statistics of the batch, which mixes samples"
    message = (
        "Expected a model in which the gradient of a sample depends neither on other samples nor "
        f"on chance, but these layers {does if mixing else 'drop activations at random'}: "
        f"{name_some(mixing or random)}. Call model.eval(), with running statistics in every "
        "BatchNorm layer."
    )
    if mixing:
        raise UnsuitableModel("batch_dependent", message, layers=tuple(mixing))
    raise UnsuitableModel("random_layers", message, layers=tuple(random))


@torch.no_grad()
def _move_running_statistics(_: str, layer: _BatchNorm, x: Tensor, share: float) -> Tensor:
    mean, variance = layer.running_mean, layer.running_var
    if mean is None or variance is None:
        return x
    batch_mean, batch_variance = batch_moments(x.detach(), mean.dtype, correction=1)
    # A batch that overflowed inside the model must not affect the next batch.
    if bool(torch.isfinite(batch_mean).all() & torch.isfinite(batch_variance).all()):
        mean.lerp_(batch_mean, share)
        variance.lerp_(batch_variance, share)
    return x


def batch_moments(x: Tensor, dtype: torch.dtype, correction: int) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each channel, over all processes that share the batch."""
    if (shard := active()) is not None:
        mean, variance, _ = shared_moments(x.to(dtype), correction, shard)
        return mean, variance
    axes = [axis for axis in range(x.dim()) if axis != 1]
    n = x.numel() // x.shape[1]
    # A single value has no unbiased variance; use the biased one, zero.
    variance, mean = torch.var_mean(x.to(dtype), dim=axes, correction=min(correction, n - 1))
    return mean, variance


def _mix_statistics(_: str, layer: _BatchNorm, x: Tensor, share: float, keep: bool) -> Tensor:
    """Return an input for which the layer's result is that of mixed statistics.

    Gradients flow through the batch's statistics. Those that are kept have a biased variance.
    """
    mean, variance = layer.running_mean, layer.running_var
    if mean is None or variance is None:
        return x
    batch_mean, batch_variance = batch_moments(x, mean.dtype, correction=int(not keep))
    mixed_mean = torch.lerp(mean.detach().clone(), batch_mean, share)
    mixed_variance = torch.lerp(variance.detach().clone(), batch_variance, share)
    if keep and bool(torch.isfinite(mixed_mean).all() & torch.isfinite(mixed_variance).all()):
        mean.copy_(mixed_mean.detach())
        variance.copy_(mixed_variance.detach())
    return renormalise(layer, x, mixed_mean, mixed_variance)


def renormalise(layer: _BatchNorm, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return an input that the layer's running statistics normalise as others would the given one.

    Mean and variance are by channel (C), or by image and channel (N, C). The layer is in evaluation
    mode. It may do more than normalise, such as an activation.
    """
    own_mean, own_variance = layer.running_mean, layer.running_var
    if own_mean is None or own_variance is None:
        return x
    shape = [-1, x.shape[1], *[1] * (x.dim() - 2)]
    # A copy, because the buffers may move before the backward pass.
    factor = ((own_variance.detach().clone() + layer.eps) / (variance + layer.eps)).sqrt()
    shifted = (x - mean.to(x.dtype).view(shape)) * factor.to(x.dtype).view(shape)
    return shifted + own_mean.detach().to(x.dtype).view(shape)


def _plain_layout(_: str, layer: nn.Module, x: Tensor) -> Tensor:
    """Make the input of a GroupNorm at the start of the graph contiguous.

    On the CPU, PyTorch 2.13 crashes (without an exception) in the backward pass of a GroupNorm
    whose channels-last input requires no gradient while its scale does.
    """
    exposed = x.device.type == "cpu" and torch.is_grad_enabled() and not x.requires_grad
    return x.contiguous() if exposed else x


@contextmanager
def change_inputs(
    layers: Mapping[str, Layer], change: Callable[[str, Layer, Tensor], Tensor]
) -> Iterator[None]:
    """Let each layer run on `change(name, layer, input)` instead of its input."""

    def hook(name: str, layer: Layer) -> RemovableHandle:
        def replace(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (change(name, layer, inputs[0]), *inputs[1:])

        return layer.register_forward_pre_hook(replace)

    hooks: list[RemovableHandle] = []
    try:
        for name, layer in layers.items():
            hooks.append(hook(name, layer))
        yield
    finally:
        for handle in hooks:
            handle.remove()


@contextmanager
def _share_statistics(layers: Mapping[str, _BatchNorm], shard: Shard) -> Iterator[None]:
    """Make BatchNorm layers in evaluation mode normalise with the moments of the whole batch.

    The input of a layer is normalised. The layer, with mean 0 and variance 1, then applies scale
    and shift, and anything else it may do, such as an activation. Its buffers are restored.
    """
    kept = [(layer, layer.running_mean, layer.running_var) for layer in layers.values()]

    def normalize(_: str, layer: _BatchNorm, x: Tensor) -> Tensor:
        normal: Tensor = Normalize.apply(x, layer.eps, shard)  # type: ignore[no-untyped-call]
        like = layer.weight if layer.weight is not None else normal
        layer.running_mean = like.new_zeros(normal.shape[1])
        layer.running_var = like.new_full((normal.shape[1],), 1 - layer.eps)
        return normal

    try:
        with change_inputs(layers, normalize):
            yield
    finally:
        for layer, mean, variance in kept:
            layer.running_mean, layer.running_var = mean, variance


@contextmanager
def use_statistics(
    model: nn.Module, statistics: Statistics, momentum: float = 0.1, moves: bool = True
) -> Iterator[None]:
    """Run the model in evaluation mode with the chosen BatchNorm statistics.

    Dropout and stochastic depth are off throughout.

    Args:
        model: Its modes are restored at the end.
        statistics: `"batch"`: mean and variance of the current batch; nothing is stored.
            `"running"`: the layer's running statistics are first updated with the batch (share
            `momentum`, unbiased variance, as in PyTorch), then used to normalise it; no gradient
            flows through them. `"source"`: the running statistics as trained. `"mixed"`: a mixture
            of the running statistics and those of the batch (share `momentum`, unbiased variance);
            nothing is stored, and gradients flow through the statistics of the batch. `"robust"`:
            such a mixture (biased variance) that is stored as running statistics. `"auto"`: those
            of the source here; `acclimate.functional.stream_norm` replaces them.
        momentum: The share of the batch for `"running"`, `"mixed"` and `"robust"`.
        moves: Whether running statistics are updated; False for a second view of a batch and
            without learning. `"running"` and `"robust"` are then like `"source"`.
    """
    modes = [(module, module.training) for module in model.modules()]
    layers = batch_norm_layers(model)
    tracking = [layer.track_running_stats for layer in layers.values()]
    group_norms = {str(n): m for n, (m, _) in enumerate(modes) if isinstance(m, nn.GroupNorm)}
    contexts = ExitStack()
    try:
        contexts.enter_context(change_inputs(group_norms, _plain_layout))
        for module, _ in modes:
            module.training = False
        if statistics == "batch" and (shard := active()) is not None:
            contexts.enter_context(_share_statistics(layers, shard))
        elif statistics == "batch":
            # Only training mode *without* tracking uses the batch and keeps the buffers unchanged:
            # in evaluation mode PyTorch uses the buffers even if tracking is off.
            for layer in layers.values():
                layer.training = True
                layer.track_running_stats = False
        elif statistics == "running" and moves:
            move = partial(_move_running_statistics, share=momentum)
            contexts.enter_context(change_inputs(layers, move))
        elif statistics == "mixed" or (statistics == "robust" and moves):
            mix = partial(_mix_statistics, share=momentum, keep=statistics == "robust")
            contexts.enter_context(change_inputs(layers, mix))
        yield
    finally:
        contexts.close()
        for layer, flag in zip(layers.values(), tracking, strict=True):
            layer.track_running_stats = flag
        for module, mode in modes:
            module.training = mode
