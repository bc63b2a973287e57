"""Per-sample gradients of linear layers and convolutions, and inner products of them.

The weight gradient of a linear map is Dᵀ A, with A the inputs (positions × inputs; for a
convolution: the patches) and D the output gradients (positions × outputs). An inner product of
two such gradients needs neither of them: it is the sum over positions s, t of
(A A'ᵀ)[s, t] · (D D'ᵀ)[s, t]. With few positions that is far cheaper than the gradients.

Patches are not made either. The Gram matrix of the patches is the Gram matrix of the *pixels*,
added up over the offsets in the window: ⟨patch at s, patch at t⟩ = Σ_k ⟨pixel s + k, pixel t + k⟩.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight
from torch.nn.modules.conv import _ConvNd

from acclimate.functional.gradient_sums import widest_dtype

#: Cost of one element written or read, in multiply-adds of a matrix product (measured on a CPU).
ELEMENT_COST = 40

_CONV_WEIGHT: dict[int, Callable[..., Tensor]] = {
    1: conv1d_weight,
    2: conv2d_weight,
    3: conv3d_weight,
}


@dataclass(frozen=True)
class Axis:
    """The window of a convolution along one spatial dimension."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    n_inputs: int
    n_outputs: int


@dataclass(frozen=True)
class LinearMap:
    """A linear layer or convolution, brought to one form.

    Attributes:
        x: Inputs (rows, groups, channels, positions).
        delta: Output gradients (rows, groups, channels, positions).
        axes: The window, one entry a spatial dimension; none for a linear layer.
    """

    x: Tensor
    delta: Tensor
    axes: tuple[Axis, ...] = ()

    def direct_cost(self) -> int:
        """Return the cost of the inner products of one pair by way of its gradients."""
        _, n_groups, n_inputs, _ = self.x.shape
        _, _, n_outputs, n_positions = self.delta.shape
        n_weights = n_groups * n_outputs * n_inputs * prod(axis.kernel for axis in self.axes)
        return 2 * n_weights * (n_positions + ELEMENT_COST)

    def gram_cost(self) -> int:
        """Return the cost of the inner products of one pair by way of Gram matrices."""
        _, n_groups, n_inputs, n_pixels = self.x.shape
        _, _, n_outputs, n_positions = self.delta.shape
        products = n_pixels**2 * n_inputs + n_positions**2 * n_outputs
        n_reads = n_pixels**2 * (1 + sum(axis.kernel for axis in self.axes))
        return 3 * n_groups * (products + ELEMENT_COST * n_reads)

    def gram_bytes(self) -> int:
        """Return the extra memory the Gram matrices of one pair take."""
        _, n_groups, _, n_pixels = self.x.shape
        return 3 * n_groups * n_pixels**2 * self.x.element_size()

    def gram_products(self, pairs: slice) -> Tensor:
        """Return ⟨g, g'⟩, ‖g‖² and ‖g'‖² by pair and output channel, (3, n, channels)."""
        x, delta = (values[2 * pairs.start : 2 * pairs.stop] for values in (self.x, self.delta))
        x1, x2, delta1, delta2 = (
            values.flatten(0, 1) for values in (x[0::2], x[1::2], delta[0::2], delta[1::2])
        )
        products = [
            self._inner(x1, x2, delta1, delta2),
            self._inner(x1, x1, delta1, delta1),
            self._inner(x2, x2, delta2, delta2),
        ]
        return torch.stack(products).view(3, len(x) // 2, -1)

    def _inner(self, x1: Tensor, x2: Tensor, delta1: Tensor, delta2: Tensor) -> Tensor:
        gram = torch.bmm(x1.transpose(1, 2), x2)
        if self.axes:
            sizes = [axis.n_inputs for axis in self.axes]
            gram = gram.view(-1, *sizes, *sizes)
            for index, axis in enumerate(self.axes):
                gram = _add_offsets(gram, 1 + index, 1 + index + len(sizes), axis)
            gram = gram.reshape(len(gram), delta1.shape[2], delta2.shape[2])
        return (torch.bmm(delta1, gram) * delta2).sum(2, dtype=widest_dtype(gram.device))


def _add_offsets(gram: Tensor, first: int, second: int, axis: Axis) -> Tensor:
    """Return Σ_k gram[stride · s + k, stride · t + k] along two dimensions, zero outside."""
    if axis.kernel == axis.stride == 1 and axis.padding == 0:
        return gram
    shape = list(gram.shape)
    shape[first] = shape[second] = axis.n_outputs
    result = gram.new_zeros(shape)
    for k in range(axis.kernel):
        offset = k * axis.dilation - axis.padding
        low = max(0, -(offset // axis.stride))
        high = min(axis.n_outputs, (axis.n_inputs - 1 - offset) // axis.stride + 1)
        if low >= high:
            continue
        start = low * axis.stride + offset
        inputs = slice(start, start + (high - low - 1) * axis.stride + 1, axis.stride)
        target: list[slice] = [slice(None)] * gram.dim()
        source = list(target)
        target[first] = target[second] = slice(low, high)
        source[first] = source[second] = inputs
        result[tuple(target)] += gram[tuple(source)]
    return result


def _tokens(values: Tensor) -> Tensor:
    """Return (B, ..., channels) as (B, positions, channels)."""
    return values.reshape(len(values), -1, values.shape[-1])


def linear_map(layer: nn.Linear, x: Tensor, delta: Tensor) -> LinearMap:
    """Return a linear layer as a linear map."""
    return LinearMap(
        _tokens(x).transpose(1, 2).unsqueeze(1), _tokens(delta).transpose(1, 2).unsqueeze(1)
    )


def linear_weight(layer: nn.Linear, x: Tensor, delta: Tensor) -> Tensor:
    """Return the per-sample weight gradients of a linear layer."""
    return torch.bmm(_tokens(delta).transpose(1, 2), _tokens(x))


def linear_bias(layer: nn.Linear, x: Tensor, delta: Tensor) -> Tensor:
    """Return the per-sample bias gradients of a linear layer."""
    return _tokens(delta).sum(1)


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


def conv_map(layer: _ConvNd, x: Tensor, delta: Tensor) -> LinearMap:
    """Return a convolution as a linear map."""
    x, stride, padding = _conv_input(layer, x)
    windows = zip(
        layer.kernel_size,
        stride,
        padding,
        layer.dilation,
        x.shape[2:],
        delta.shape[2:],
        strict=True,
    )
    return LinearMap(
        x.reshape(len(x), layer.groups, -1, prod(x.shape[2:])),
        delta.reshape(len(x), layer.groups, -1, prod(delta.shape[2:])),
        tuple(Axis(*window) for window in windows),
    )


def conv_weight(layer: _ConvNd, x: Tensor, delta: Tensor) -> Tensor:
    """Return the per-sample weight gradients of a convolution."""
    x, stride, padding = _conv_input(layer, x)
    n_rows, shape = len(x), layer.weight.shape
    if prod(layer.kernel_size) == layer.groups == 1 and not any(padding):
        gradients = torch.bmm(delta.flatten(2), x.flatten(2).transpose(1, 2))
        return gradients.view(n_rows, *shape)
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


def conv_bias(layer: _ConvNd, x: Tensor, delta: Tensor) -> Tensor:
    """Return the per-sample bias gradients of a convolution."""
    return delta.flatten(2).sum(2)
