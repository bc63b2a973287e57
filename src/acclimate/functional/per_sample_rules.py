"""Per-sample gradients of single layers: linear layers, convolutions and normalisation layers.

In this file `x` is the input of a layer and `delta` is the gradient of the loss with respect to its
output. Both have the samples in the first dimension, called rows. Rows are in pairs: row 2i is
sample i, row 2i + 1 is its transformed view.

The weight gradient of a linear map is Dᵀ A, where A contains the inputs (positions × inputs; for a
convolution: the patches) and D the output gradients (positions × outputs). The inner product of
two such gradients is also the sum over positions s, t of (A A'ᵀ)[s, t] · (D D'ᵀ)[s, t]. If there
are few positions, these Gram matrices are much cheaper than the gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from math import inf, prod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from acclimate.functional.precision import at_least_float32, widest_dtype

Granularity = Literal["tensor", "module", "channel", "parameter"]
#: Inner products of b pairs: ⟨g, g'⟩ of the two rows, (b, units), and ‖g‖² of each, (2b, units).
Products = tuple[Tensor, Tensor]

#: Bytes for temporary tensors of one layer. Larger blocks do not fit a CPU's cache.
WORKSPACE = 8 * 2**20
#: Cost of one element written or read, in multiply-adds of a matrix product (measured on a CPU).
ELEMENT_COST = 40

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_FORWARDS = {kind.forward for kind in (nn.Linear, *_CONVS, *_NORMS)}
_CONV_FORWARDS = {kind._conv_forward for kind in _CONVS}


def has_rule(layer: nn.Module) -> bool:
    """Return whether there is a rule for the layer; not if a subclass overrides `forward`."""
    if isinstance(layer, _CONVS) and type(layer)._conv_forward not in _CONV_FORWARDS:
        return False
    return "forward" not in vars(layer) and type(layer).forward in _FORWARDS


def iter_products(
    layer: Any, attribute: str, x: Tensor, delta: Tensor, granularity: Granularity
) -> Iterator[Products]:
    """Yield the inner products of the gradients of "weight" or "bias" for blocks of pairs."""
    by_gram, gram_elements = False, 0
    if attribute == "weight" and isinstance(layer, nn.Linear | _ConvNd):
        x = x.to(delta.dtype)
        gram_cost, direct_cost, gram_elements = costs(layer, delta)
        by_gram = gram_cost < direct_cost and granularity != "parameter"
    else:
        x, delta = at_least_float32(x), at_least_float32(delta)
    # Two gradients, and as much for their products; float64 if every weight is a unit.
    n_direct = getattr(layer, attribute).numel() * (48 if granularity == "parameter" else 4)
    n_bytes = (gram_elements if by_gram else n_direct) * x.element_size()
    n_rows = 2 * max(1, WORKSPACE // n_bytes)
    for x_part, delta_part in zip(torch.split(x, n_rows), torch.split(delta, n_rows), strict=True):
        if by_gram:
            yield gram_products(layer, x_part, delta_part, by_channel=granularity == "channel")
        else:
            gradients = layer_gradients(layer, attribute, x_part, delta_part)
            yield gradient_products(gradients, granularity)


def gradient_products(gradients: Tensor, granularity: Granularity) -> Products:
    """Return the inner products of gradients (2b, *shape)."""
    gradients = at_least_float32(gradients if gradients.dim() > 1 else gradients[:, None])
    if granularity == "parameter":  # in float32 the square of a small gradient would be zero
        gradients = gradients.flatten(1).to(widest_dtype(gradients.device))
    between, squares = gradients[0::2] * gradients[1::2], gradients * gradients
    # `sum` adds pairwise, so float32 is accurate enough here. A matrix product would not be.
    axes = list(range(2 if granularity in ("channel", "parameter") else 1, gradients.dim()))
    if axes:
        between, squares = between.sum(axes), squares.sum(axes)
    return between.view(len(between), -1), squares.view(len(squares), -1)


def layer_gradients(layer: Any, attribute: str, x: Tensor, delta: Tensor) -> Tensor:
    """Return the gradients of "weight" or "bias", (rows, *shape)."""
    n_rows, shape = len(x), getattr(layer, attribute).shape
    if attribute == "weight" and isinstance(layer, nn.Linear | _ConvNd):
        return _linear_weight(layer, x, delta)
    summands = delta if attribute == "bias" else _normalized(layer, x).mul_(delta)
    if isinstance(layer, nn.Linear | nn.LayerNorm | nn.RMSNorm):  # channels are last
        return summands.reshape(n_rows, -1, *shape).sum(1)
    return summands.reshape(n_rows, *shape, -1).sum(2)


def _normalized(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the normalised input, which a normalisation layer multiplies by its weight."""
    plain = copy.copy(layer)
    plain._parameters = dict.fromkeys(layer._parameters)
    buffers = layer._buffers.items()
    plain._buffers = {k: None if b is None else b.to(x.dtype, copy=True) for k, b in buffers}
    y: Tensor = plain.forward(x)
    return y


def _is_plain(layer: Any) -> bool:
    """Return whether `_inputs` supports the layer: linear layers and ungrouped 2-D convolutions."""
    return isinstance(layer, nn.Linear) or (layer.groups == 1 and len(layer.kernel_size) == 2)


def _resolve(layer: _ConvNd, x: Tensor) -> tuple[Tensor, Any, Any]:
    """Return the input, the stride and the zero padding of a convolution."""
    stride, padding = layer.stride, layer.padding
    if isinstance(padding, str) or layer.padding_mode != "zeros":
        mode = layer.padding_mode.replace("zeros", "constant")
        x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode), (0,) * len(stride)
    return x, stride, padding


def _tokens(layer: nn.Module, values: Tensor) -> Tensor:
    """Return inputs or output gradients as (rows, positions, channels)."""
    if isinstance(layer, nn.Linear):
        return values.reshape(len(values), -1, values.shape[-1])
    return values.flatten(2).mT


def _inputs(layer: Any, x: Tensor, delta: Tensor) -> list[Tensor]:
    """Return the inputs (patches) of a plain layer as (rows, positions, inputs).

    The patches are in parts, one per row of the window. They are copied along the width only; along
    the height, each part is a slice of these copies.
    """
    if isinstance(layer, nn.Linear):
        return [_tokens(layer, x)]
    x, stride, padding = _resolve(layer, x)
    if layer.kernel_size == (1, 1) and not any(padding):
        return [_tokens(layer, x[:, :, :: stride[0], :: stride[1]])]

    def met(axis: int, k: int) -> slice:  # the padded inputs of element k of the window
        start = k * layer.dilation[axis]
        return slice(start, start + (delta.shape[2 + axis] - 1) * stride[axis] + 1, stride[axis])

    pixels, (height, width) = x.permute(0, 2, 3, 1), layer.kernel_size
    if any(padding):
        pixels = F.pad(pixels, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    patches = torch.stack([pixels[:, :, met(1, k)] for k in range(width)], 3).flatten(3)
    return [patches[:, met(0, k)].flatten(1, 2) for k in range(height)]


def _linear_weight(layer: Any, x: Tensor, delta: Tensor) -> Tensor:
    """Return the weight gradients of a linear layer or a convolution."""
    n_rows, shape = len(x), layer.weight.shape
    if not _is_plain(layer):  # one convolution in which every sample is a group
        x, stride, padding = _resolve(layer, x)
        weight_gradient: Any = (conv1d_weight, conv2d_weight, conv3d_weight)[len(stride) - 1]
        inputs, deltas = x.reshape(1, -1, *x.shape[2:]), delta.reshape(1, -1, *delta.shape[2:])
        sizes, groups = (n_rows * shape[0], *shape[1:]), n_rows * layer.groups
        found = weight_gradient(inputs, sizes, deltas, stride, padding, layer.dilation, groups)
        return torch.reshape(found, (n_rows, *shape))
    parts, deltas = _inputs(layer, x, delta), _tokens(layer, delta)
    gradients = x.new_empty(len(parts), n_rows, parts[0].shape[2], shape[0])
    for part, gradient in zip(parts, gradients, strict=True):
        torch.bmm(part.mT, deltas, out=gradient)
    by_pixel = gradients.view(len(parts), n_rows, -1, shape[1], shape[0])
    return by_pixel.permute(1, 4, 3, 0, 2).reshape(n_rows, *shape)


def costs(layer: Any, delta: Tensor) -> tuple[float, float, int]:
    """Return the costs of one pair with Gram matrices and gradients; the elements of the first."""
    _, n_positions, n_outputs = _tokens(layer, delta).shape
    n_inputs = prod(layer.weight.shape[1:])
    n_elements = 6 * n_positions**2 + 2 * n_positions * n_inputs
    products = 3 * n_positions**2 * (n_inputs + n_outputs)
    direct = 2 * n_inputs * n_outputs * (n_positions + ELEMENT_COST)
    return products + ELEMENT_COST * n_elements if _is_plain(layer) else inf, direct, n_elements


def gram_products(layer: Any, x: Tensor, delta: Tensor, by_channel: bool) -> Products:
    """Return the inner products of the weight gradients of a plain layer from Gram matrices."""
    parts, deltas, dtype = _inputs(layer, x, delta), _tokens(layer, delta), widest_dtype(x.device)

    def inner(first: slice, second: slice) -> Tensor:
        gram = torch.bmm(parts[0][first], parts[0][second].mT)
        for part in parts[1:]:
            gram.baddbmm_(part[first], part[second].mT)
        if by_channel:
            return (torch.bmm(gram, deltas[second]) * deltas[first]).sum(1, dtype=dtype)
        products = torch.bmm(deltas[first], deltas[second].mT).mul_(gram)
        return products.flatten(1).sum(1, keepdim=True, dtype=dtype)

    return inner(slice(0, None, 2), slice(1, None, 2)), inner(slice(None), slice(None))
