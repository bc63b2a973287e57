"""Per-sample gradients of single layers from their input and the gradient of their output.

One rule a kind of layer. A rule gives the gradients themselves; for linear maps (convolutions
included) a second way gives inner products of gradients without the gradients, from Gram matrices
over positions. `weight_products` takes whichever costs less.

In all of this file `x` is a layer's input and `delta` the loss's gradient with respect to its
output, both with the samples in the first dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from acclimate.functional.gradient_conv import conv_bias, conv_map, conv_weight
from acclimate.functional.gradient_linear import (
    LinearMap,
    linear_bias,
    linear_map,
    linear_weight,
)
from acclimate.functional.gradient_sums import Granularity, Products, unit_products

#: Bytes for the temporary tensors of one layer. Small enough to stay in a CPU's cache: larger
#: blocks are not faster, and above 32 MB every allocation is paid in page faults.
WORKSPACE = 8 * 2**20


@dataclass(frozen=True)
class Rule:
    """What is known about one kind of layer.

    Attributes:
        weight: (layer, x, delta) to the per-sample gradients of `weight`, (rows, *shape).
        bias: The same of `bias`.
        is_batched: (layer, x) to whether the first dimension of `x` can be the samples.
        linear_map: (layer, x, delta) to the layer as a matrix product, where it is one.
    """

    weight: Callable[[Any, Tensor, Tensor], Tensor]
    bias: Callable[[Any, Tensor, Tensor], Tensor]
    is_batched: Callable[[Any, Tensor], bool]
    linear_map: Callable[[Any, Tensor, Tensor], LinearMap] | None = None


def find_rule(layer: nn.Module) -> Rule | None:
    """Return the rule of a layer, or None if none is known to hold.

    What counts is the code that runs, not the name of the class: a subclass keeps the rule as
    long as it keeps the `forward`.
    """
    if "forward" in vars(layer):
        return None
    rule = _RULES.get(type(layer).forward)
    if isinstance(layer, _ConvNd) and type(layer)._conv_forward not in _CONV_FORWARDS:
        return None
    if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq):
        return None
    return rule


def iter_products(
    rule: Rule,
    layer: nn.Module,
    attribute: str,
    x: Tensor,
    delta: Tensor,
    granularity: Granularity,
) -> Iterator[Products]:
    """Yield inner products of per-sample gradients, a few pairs of rows at a time, in order.

    Args:
        rule: The layer's rule.
        layer: The layer.
        attribute: "weight" or "bias".
        x: Input of the layer, rows in pairs.
        delta: Gradient of its output.
        granularity: What one unit is.
    """
    n_pairs = x.shape[0] // 2
    linear_map = rule.linear_map if attribute == "weight" else None
    if linear_map is None:
        x, delta = at_least_float32(x), at_least_float32(delta)
    else:
        x, delta = _in_one_type(x, delta)
    if linear_map is not None and granularity != "parameter":
        whole = linear_map(layer, x, delta)
        if whole.gram_cost() < whole.direct_cost():
            for pairs in _blocks(n_pairs, 2 * whole.gram_bytes()):
                yield whole.gram_products(pairs, by_channel=granularity == "channel")
            return
    gradient = rule.weight if attribute == "weight" else rule.bias
    n_weights: int = getattr(layer, attribute).numel()
    # Two rows, and about as much again for the products; float64 if every weight is a unit.
    bytes_per_pair = 4 * n_weights * (6 * 8 if granularity == "parameter" else x.element_size())
    for pairs in _blocks(n_pairs, bytes_per_pair):
        rows = slice(2 * pairs.start, 2 * pairs.stop)
        gradients = gradient(layer, x[rows], delta[rows])
        yield unit_products(at_least_float32(gradients), granularity)


def at_least_float32(values: Tensor) -> Tensor:
    """Return values widened if they are in half precision, in which long sums lose too much."""
    return values.float() if _is_half(values) else values


def _in_one_type(x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in half precision if one is: a matrix product takes no mixture."""
    half = next((values.dtype for values in (x, delta) if _is_half(values)), None)
    return (x, delta) if half is None else (x.to(half), delta.to(half))


def _is_half(values: Tensor) -> bool:
    return values.is_floating_point() and values.element_size() < 4


def _blocks(n_pairs: int, bytes_per_pair: int) -> Iterator[slice]:
    size = max(1, WORKSPACE // max(1, bytes_per_pair))
    for start in range(0, n_pairs, size):
        yield slice(start, min(n_pairs, start + size))


def _normalized(layer: nn.Module, x: Tensor) -> Tensor:
    """Return what a normalisation layer multiplies by its weight."""
    match layer:
        case _BatchNorm():
            mean, var = _statistics(layer, x.dtype)
            return F.batch_norm(x, mean, var, eps=layer.eps)
        case _InstanceNorm():
            from_input = layer.training or not layer.track_running_stats
            mean, var = (None, None) if from_input else _statistics(layer, x.dtype)
            return F.instance_norm(x, mean, var, use_input_stats=from_input, eps=layer.eps)
        case nn.GroupNorm():
            return F.group_norm(x, layer.num_groups, eps=layer.eps)
        case nn.LayerNorm():
            return F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
        case nn.RMSNorm():
            return F.rms_norm(x, layer.normalized_shape, eps=layer.eps)
    raise TypeError(f"no normalisation layer: {type(layer).__name__}")


def _statistics(
    layer: _BatchNorm | _InstanceNorm, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    mean, var = layer.running_mean, layer.running_var
    return (None if mean is None else mean.to(dtype)), (None if var is None else var.to(dtype))


def _channel_sum(values: Tensor) -> Tensor:
    return values.flatten(2).sum(2) if values.dim() > 2 else values


def _norm_weight(layer: nn.Module, x: Tensor, delta: Tensor) -> Tensor:
    return _channel_sum(_normalized(layer, x).mul_(delta))


def _norm_bias(layer: nn.Module, x: Tensor, delta: Tensor) -> Tensor:
    return _channel_sum(delta)


def _trailing_sum(layer: nn.LayerNorm | nn.RMSNorm, values: Tensor) -> Tensor:
    return values.reshape(len(values), -1, *layer.normalized_shape).sum(1)


def _trailing_weight(layer: nn.LayerNorm | nn.RMSNorm, x: Tensor, delta: Tensor) -> Tensor:
    return _trailing_sum(layer, delta * _normalized(layer, x))


def _trailing_bias(layer: nn.LayerNorm | nn.RMSNorm, x: Tensor, delta: Tensor) -> Tensor:
    return _trailing_sum(layer, delta)


def _embedding_weight(layer: nn.Embedding, x: Tensor, delta: Tensor) -> Tensor:
    n_rows, n_words, width = len(x), layer.num_embeddings, layer.embedding_dim
    words, vectors = x.reshape(n_rows, -1), delta.reshape(n_rows, -1, width)
    if layer.padding_idx is not None:
        vectors = vectors.masked_fill((words == layer.padding_idx)[..., None], 0)
    offsets = n_words * torch.arange(n_rows, device=x.device)[:, None]
    gradients = vectors.new_zeros(n_rows * n_words, width)
    gradients.index_add_(0, (words + offsets).flatten(), vectors.flatten(0, 1))
    return gradients.view(n_rows, n_words, width)


def _no_bias(layer: nn.Module, x: Tensor, delta: Tensor) -> Tensor:
    raise TypeError(f"{type(layer).__name__} has no bias")


def _has_channels(layer: nn.Module, x: Tensor) -> bool:
    return x.dim() >= 2


_CONV = Rule(
    conv_weight, conv_bias, lambda layer, x: x.dim() == len(layer.kernel_size) + 2, conv_map
)
_TRAILING = Rule(
    _trailing_weight, _trailing_bias, lambda layer, x: x.dim() > len(layer.normalized_shape)
)
_INSTANCE = Rule(
    _norm_weight, _norm_bias, lambda layer, x: x.dim() == layer._get_no_batch_dim() + 1
)
_CONV_FORWARDS = (nn.Conv1d._conv_forward, nn.Conv2d._conv_forward, nn.Conv3d._conv_forward)
_RULES: dict[Callable[..., Any], Rule] = {
    nn.Linear.forward: Rule(linear_weight, linear_bias, _has_channels, linear_map),
    nn.Conv1d.forward: _CONV,
    nn.Conv2d.forward: _CONV,
    nn.Conv3d.forward: _CONV,
    _BatchNorm.forward: Rule(_norm_weight, _norm_bias, _has_channels),
    _InstanceNorm.forward: _INSTANCE,
    nn.GroupNorm.forward: Rule(_norm_weight, _norm_bias, _has_channels),
    nn.LayerNorm.forward: _TRAILING,
    nn.RMSNorm.forward: _TRAILING,
    nn.Embedding.forward: Rule(_embedding_weight, _no_bias, lambda layer, x: x.dim() >= 1),
}
