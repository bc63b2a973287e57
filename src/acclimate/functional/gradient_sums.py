"""From per-sample gradients of two views to sums of cosines.

Rows come in pairs: row 2i holds sample i in its first view, row 2i + 1 the same sample in its
second view. A *unit* is what gets one cosine: a tensor, a module, a channel or a single weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Granularity = Literal["tensor", "module", "channel", "parameter"]

#: The smallest norm divided by, as in `torch.nn.functional.cosine_similarity`. It turns gradients
#: that are nothing but rounding error into a cosine of about 0 instead of a random sign.
SMALLEST_NORM = 1e-8


@dataclass(frozen=True)
class CosineSum:
    """The cosines of one parameter's units, summed over the samples.

    Attributes:
        total: Sum of the cosines, float64, on the CPU; broadcasts to the parameter.
        seen: Whether any sample had a gradient other than zero in both views; shape of `total`.
    """

    total: Tensor
    seen: Tensor


class Products(NamedTuple):
    """Inner products of the gradients of b pairs of rows.

    Attributes:
        between: ⟨g, g'⟩ of the two rows of each pair, (b, units).
        squares: ‖g‖² of every row, (2b, units).
    """

    between: Tensor
    squares: Tensor


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype to add up in: float64 wherever the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def unit_products(gradients: Tensor, granularity: Granularity) -> Products:
    """Return the inner products of the per-sample gradients of one parameter.

    Args:
        gradients: Shape (2b, *shape), rows in pairs.
        granularity: What one unit is.
    """
    if gradients.dim() == 1:
        gradients = gradients[:, None]
    if granularity == "parameter":
        # Widened first: the square of a small float32 would be zero, and its sign lost.
        gradients = gradients.flatten(1).to(widest_dtype(gradients.device))
    between, squares = gradients[0::2] * gradients[1::2], gradients * gradients
    # Added up where they lie: the gradients of a convolution are not in the order of its weight.
    # torch sums pairwise, so float32 loses nothing here (measured: 1e-7 at 600 000 terms); a
    # matrix product used as an inner product loses four digits.
    axes = list(range(2 if granularity in ("channel", "parameter") else 1, gradients.dim()))
    if axes:
        between, squares = between.sum(axes), squares.sum(axes)
    return Products(between.view(between.shape[0], -1), squares.view(squares.shape[0], -1))


class CosineSums:
    """Adds up cosines over samples, for every parameter of a model."""

    def __init__(self, parameters: Mapping[str, Tensor], granularity: Granularity) -> None:
        self.granularity = granularity
        self._parameters = parameters
        self._counted: dict[tuple[str, ...], tuple[Tensor, Tensor]] = {}
        self._open: dict[str, list[Products]] = {}

    def add_gradients(self, name: str, gradients: Tensor) -> None:
        """Add the gradients (2b, *shape) of one parameter for the next b pairs of a chunk."""
        self.add_products(name, unit_products(gradients, self.granularity))

    def add_products(self, name: str, products: Products) -> None:
        """Add the inner products of one parameter for the next pairs of a chunk."""
        if self.granularity in ("channel", "parameter"):
            self._count((name,), *_cosines(products))
        else:
            # One number a sample: the division waits for the end of the chunk, where it is one for
            # all units together. In a module, several tensors make one unit.
            self._open.setdefault(name, []).append(products)

    def close_chunk(self) -> None:
        """Count the units that were waiting for all of their tensors and pairs."""
        units: dict[str, list[Products]] = {}
        for name, parts in self._open.items():
            units.setdefault(self._unit(name), []).append(_joined(parts))
        self._open.clear()
        by_device: dict[torch.device, list[str]] = {}
        for unit, members in units.items():
            by_device.setdefault(members[0].between.device, []).append(unit)
        for device, names in by_device.items():
            columns = zip(*(_added(units[name], device) for name in names), strict=True)
            together = Products(*(torch.cat(parts, dim=1) for parts in columns))
            self._count(tuple(names), *_cosines(together))

    def result(self) -> dict[str, CosineSum]:
        """Return the sums so far, by parameter name."""
        totals: dict[str, Tensor] = {}
        seen: dict[str, Tensor] = {}
        for units, (total, was_seen) in self._counted.items():
            # A key of several units has one number for each.
            rows = total.to("cpu", torch.float64).view(len(units), -1)
            seen_rows = was_seen.cpu().view(len(units), -1)
            for unit, row, seen_row in zip(units, rows, seen_rows, strict=True):
                totals[unit] = totals[unit] + row if unit in totals else row
                seen[unit] = seen[unit] | seen_row if unit in seen else seen_row
        sums = {}
        for name, parameter in self._parameters.items():
            unit, shape = self._unit(name), self._shape(parameter)
            total = totals.get(unit, torch.zeros(shape, dtype=torch.float64))
            was_seen = seen.get(unit, torch.zeros(shape, dtype=torch.bool))
            sums[name] = CosineSum(total.reshape(shape).clone(), was_seen.reshape(shape).clone())
        return sums

    def _unit(self, name: str) -> str:
        return name.rpartition(".")[0] if self.granularity == "module" else name

    def _shape(self, parameter: Tensor) -> tuple[int, ...]:
        if self.granularity == "parameter":
            return tuple(parameter.shape)
        if self.granularity == "channel" and parameter.dim():
            return (parameter.shape[0],) + (1,) * (parameter.dim() - 1)
        return ()

    def _count(self, units: tuple[str, ...], total: Tensor, seen: Tensor) -> None:
        if units in self._counted:
            so_far, so_far_seen = self._counted[units]
            total, seen = so_far + total, so_far_seen | seen
        self._counted[units] = (total, seen)


def _joined(parts: list[Products]) -> Products:
    """Return the products of all pairs of a chunk, wide enough to be added up."""
    between, squares = (
        torch.cat(values) if len(values) > 1 else values[0] for values in zip(*parts, strict=True)
    )
    dtype = widest_dtype(between.device)
    return Products(between.to(dtype), squares.to(dtype))


def _added(members: list[Products], device: torch.device) -> Products:
    """Return the products of the tensors of one unit, added up."""
    if len(members) == 1:
        return members[0]
    return Products(*(sum(v.to(device) for v in values) for values in zip(*members, strict=True)))


def _cosines(products: Products) -> tuple[Tensor, Tensor]:
    """Return the sum of the pairs' cosines, and whether any pair had gradients, by unit."""
    dtype = widest_dtype(products.between.device)
    # A Gram product can be negative by rounding where the gradient is zero.
    norms = products.squares.to(dtype).clamp_min(0).sqrt()
    first, second = norms[0::2], norms[1::2]
    floored = first.clamp_min(SMALLEST_NORM) * second.clamp_min(SMALLEST_NORM)
    cosines = products.between.to(dtype) / floored
    return cosines.sum(0), ((first > 0) & (second > 0)).any(0)
