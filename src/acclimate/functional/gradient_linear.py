"""Per-sample gradients of linear layers, and inner products of gradients without the gradients.

The weight gradient of a linear map is Dᵀ A, with A the inputs (positions × inputs; for a
convolution: the patches) and D the output gradients (positions × outputs). An inner product of
two such gradients needs neither of them: it is the sum over positions s, t of
(A A'ᵀ)[s, t] · (D D'ᵀ)[s, t]. With few positions that is far cheaper than the gradients.

Patches are not made either. The Gram matrix of the patches is the Gram matrix of the *pixels*,
added up over the offsets in the window: ⟨patch at s, patch at t⟩ = Σ_k ⟨pixel s + k, pixel t + k⟩.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from acclimate.functional.gradient_sums import Products, widest_dtype

#: Cost of one element written or read, in multiply-adds of a matrix product (measured on a CPU).
ELEMENT_COST = 40


@dataclass(frozen=True)
class Axis:
    """The window of a convolution along one spatial dimension."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    n_inputs: int
    n_outputs: int

    def met(self, offset: int) -> tuple[slice, slice]:
        """Return where the window's k-th place meets the input: outputs, and inputs for them."""
        shift = offset * self.dilation - self.padding
        low = max(0, -(shift // self.stride))
        high = min(self.n_outputs, (self.n_inputs - 1 - shift) // self.stride + 1)
        if low >= high:
            return slice(0, 0), slice(0, 0)
        start = low * self.stride + shift
        stop = start + (high - low - 1) * self.stride + 1
        return slice(low, high), slice(start, stop, self.stride)


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

    def gram_products(self, pairs: slice, by_channel: bool) -> Products:
        """Return the inner products of some pairs, by output channel or of the whole weight."""
        rows = slice(2 * pairs.start, 2 * pairs.stop)
        x, delta = self.x[rows], self.delta[rows]
        return Products(
            self._inner(x[0::2], x[1::2], delta[0::2], delta[1::2], by_channel),
            self._inner(x, x, delta, delta, by_channel),
        )

    def _inner(
        self, x1: Tensor, x2: Tensor, delta1: Tensor, delta2: Tensor, by_channel: bool
    ) -> Tensor:
        n_rows, n_groups = x1.shape[:2]
        x1, x2, delta1, delta2 = (values.flatten(0, 1) for values in (x1, x2, delta1, delta2))
        gram = torch.bmm(x1.transpose(1, 2), x2)
        if self.axes:
            sizes = [axis.n_inputs for axis in self.axes]
            gram = gram.view(-1, *sizes, *sizes)
            for index, axis in enumerate(self.axes):
                gram = _add_offsets(gram, 1 + index, 1 + index + len(sizes), axis)
            gram = gram.reshape(n_rows * n_groups, delta1.shape[2], delta2.shape[2])
        wide = widest_dtype(gram.device)
        if by_channel:
            return (torch.bmm(delta1, gram) * delta2).sum(2, dtype=wide).view(n_rows, -1)
        products = torch.bmm(delta1.transpose(1, 2), delta2).mul_(gram)
        return products.view(n_rows, -1).sum(1, keepdim=True, dtype=wide)


def _add_offsets(gram: Tensor, first: int, second: int, axis: Axis) -> Tensor:
    """Return Σ_k gram[stride · s + k, stride · t + k] along two dimensions, zero outside."""
    if axis.kernel == axis.stride == 1 and axis.padding == 0:
        return gram
    shape = list(gram.shape)
    shape[first] = shape[second] = axis.n_outputs
    result = gram.new_zeros(shape)
    for k in range(axis.kernel):
        target: list[slice] = [slice(None)] * gram.dim()
        source = list(target)
        outputs, inputs = axis.met(k)
        target[first] = target[second] = outputs
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
