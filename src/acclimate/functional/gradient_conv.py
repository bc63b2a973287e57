"""Per-sample weight gradients of convolutions, and convolutions as linear maps."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight
from torch.nn.modules.conv import _ConvNd

from acclimate.functional.gradient_linear import Axis, LinearMap

_CONV_WEIGHT: dict[int, Callable[..., Tensor]] = {
    1: conv1d_weight,
    2: conv2d_weight,
    3: conv3d_weight,
}


def _conv_input(layer: _ConvNd, x: Tensor) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """Return the input with every oddity resolved, and the stride and padding that remain."""
    n_axes = len(layer.kernel_size)
    if isinstance(layer.padding, str):
        extra = (
            [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
            if layer.padding == "same"
            else [0] * n_axes
        )
        before, after = [e // 2 for e in extra], [e - e // 2 for e in extra]
    else:
        before = after = list(layer.padding)
    if before != after or layer.padding_mode != "zeros":
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        # F.pad counts from the last dimension.
        sides = [side for pair in zip(before[::-1], after[::-1], strict=True) for side in pair]
        x = F.pad(x, sides, mode=mode)
        before = [0] * n_axes
    stride = layer.stride
    if prod(layer.kernel_size) == 1 and not any(before):
        x = x[tuple(slice(None, None, step) for step in (1, 1, *stride))]
        stride = (1,) * n_axes
    return x, tuple(stride), tuple(before)


def _axes(
    layer: _ConvNd, x: Tensor, delta: Tensor, stride: tuple[int, ...], padding: tuple[int, ...]
) -> tuple[Axis, ...]:
    sizes = (x.shape[2:], delta.shape[2:])
    windows = zip(layer.kernel_size, stride, padding, layer.dilation, *sizes, strict=True)
    return tuple(Axis(*window) for window in windows)


def conv_map(layer: _ConvNd, x: Tensor, delta: Tensor) -> LinearMap:
    """Return a convolution as a linear map."""
    x, stride, padding = _conv_input(layer, x)
    return LinearMap(
        x.reshape(len(x), layer.groups, -1, prod(x.shape[2:])),
        delta.reshape(len(x), layer.groups, -1, prod(delta.shape[2:])),
        _axes(layer, x, delta, stride, padding),
    )


def conv_weight(layer: _ConvNd, x: Tensor, delta: Tensor) -> Tensor:
    """Return the per-sample weight gradients of a convolution."""
    x, stride, padding = _conv_input(layer, x)
    n_rows, shape = len(x), layer.weight.shape
    if prod(layer.kernel_size) == layer.groups == 1 and not any(padding):
        gradients = torch.bmm(delta.flatten(2), x.flatten(2).transpose(1, 2))
        return gradients.view(n_rows, *shape)
    if layer.groups == 1 and is_channels_last(x):
        return _weight_by_columns(x, delta, *_axes(layer, x, delta, stride, padding))
    if len(stride) == 2 and layer.groups == 1 and prod(delta.shape[2:]) < shape[0]:
        # Wide layers at few positions: a matrix product with the patches (measured).
        patches = F.unfold(x, layer.kernel_size, layer.dilation, padding, stride)
        return torch.bmm(delta.flatten(2), patches.transpose(1, 2)).view(n_rows, *shape)
    # Otherwise one convolution in which every sample is a group of its own.
    gradients = _CONV_WEIGHT[len(stride)](
        x.reshape(1, -1, *x.shape[2:]),
        (n_rows * shape[0], *shape[1:]),
        delta.reshape(1, -1, *delta.shape[2:]),
        stride=stride,
        padding=padding,
        dilation=layer.dilation,
        groups=n_rows * layer.groups,
    )
    return gradients.view(n_rows, *shape)


def is_channels_last(x: Tensor) -> bool:
    """Return whether images lie in memory pixel by pixel, not channel by channel."""
    is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return is_last and not x.is_contiguous()


def _weight_by_columns(x: Tensor, delta: Tensor, down: Axis, right: Axis) -> Tensor:
    """Return the weight gradients of a 2-D convolution whose input has its channels last.

    The columns of the window are laid side by side, its rows are not: with the channels last, the
    inputs that one row of the window meets are a slice. So patches take a third of their room, and
    the matrix products stay large.
    """
    n_rows, n_inputs, height, _ = x.shape
    top, bottom = down.padding, down.padding + height
    shape = (n_rows, bottom + down.padding, right.n_outputs, right.kernel, n_inputs)
    columns = x.new_empty(shape)
    if down.padding:
        columns[:, :top] = 0
        columns[:, bottom:] = 0
    inside, pixels = columns[:, top:bottom], x.permute(0, 2, 3, 1)
    for k in range(right.kernel):
        outputs, inputs = right.met(k)
        inside[:, :, outputs, k] = pixels[:, :, inputs]
        for outside in (slice(0, outputs.start), slice(outputs.stop, right.n_outputs)):
            if outside.start != outside.stop:
                inside[:, :, outside, k] = 0
    deltas = delta.permute(0, 2, 3, 1).flatten(1, 2)
    gradients = x.new_empty(down.kernel, n_rows, right.kernel * n_inputs, delta.shape[1])
    for k in range(down.kernel):
        start = k * down.dilation
        stop = start + (down.n_outputs - 1) * down.stride + 1
        rows = columns[:, start : stop : down.stride].flatten(3).flatten(1, 2)
        torch.bmm(rows.transpose(1, 2), deltas, out=gradients[k])
    return gradients.view(down.kernel, n_rows, right.kernel, n_inputs, -1).permute(1, 4, 3, 0, 2)


def conv_bias(layer: _ConvNd, x: Tensor, delta: Tensor) -> Tensor:
    """Return the per-sample bias gradients of a convolution."""
    return delta.flatten(2).sum(2)
