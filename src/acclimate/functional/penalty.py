"""Shift-agnostic weight regularisation: from gradient cosines to penalties, and the regulariser.

The cosines themselves, per-sample and batched, come from `gradients.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def penalties(cosines: Mapping[str, Tensor], exponent: float = 2.0) -> dict[str, Tensor]:
    """Return penalties in [0, 1] from mean gradient cosines (paper, eq. 2).

    The cosines of all units are scaled together to [0, 1] (minimum and maximum over the model),
    then raised to `exponent`.

    Three cases the paper does not speak of are defined here, all on the careful side:
    a unit without any gradient (NaN cosine) gets penalty 1, since nothing is known of it, and has
    no part in minimum and maximum; if all cosines are equal, every penalty is 1, since no unit is
    more sensitive than another; a model without any measured unit gets penalty 1 throughout.

    Args:
        cosines: Mean cosine by parameter name; any shape, NaN where nothing was measured.
        exponent: 2 in the paper; 1 and 3 are its variants.
    """
    flat = torch.cat([value.detach().double().flatten() for value in cosines.values()])
    measured = flat[~flat.isnan()]
    low = measured.min() if measured.numel() else torch.zeros((), dtype=torch.float64)
    span = measured.max() - low if measured.numel() else torch.zeros((), dtype=torch.float64)
    result = {}
    for name, value in cosines.items():
        value = value.detach().double()
        scaled = (value - low) / span if span > 0 else torch.ones_like(value)
        result[name] = torch.where(value.isnan(), 1.0, scaled**exponent)
    return result


def penalty_term(
    parameters: Sequence[Tensor],
    anchors: Sequence[Tensor],
    weights: Sequence[Tensor],
    strength: float,
) -> Tensor:
    """Return the regulariser's value, strength · Σ w ‖θ − θ*‖² (paper, last term of eq. 1)."""
    terms = [
        (weight * (parameter - anchor) ** 2).sum()
        for parameter, anchor, weight in zip(parameters, anchors, weights, strict=True)
    ]
    return strength * torch.stack([term.double() for term in terms]).sum()


@torch.no_grad()
def add_penalty_gradient(
    gradients: Sequence[Tensor],
    parameters: Sequence[Tensor],
    anchors: Sequence[Tensor],
    coefficients: list[float] | list[Tensor],
) -> list[Tensor]:
    """Return gradients with the regulariser's own, 2 · strength · w · (θ − θ*), added.

    Args:
        gradients: One tensor a parameter; left as they are, since autograd may return the same or
            an expanded tensor for several parameters.
        parameters: The current values.
        anchors: The values to be held to.
        coefficients: 2 · strength · w for each parameter: plain numbers, or tensors that
            broadcast to the parameter.
    """
    # Multi-tensor operations: a few kernel launches for the whole model instead of three a tensor.
    moves = list(torch._foreach_sub(list(parameters), list(anchors)))
    torch._foreach_mul_(moves, coefficients)
    torch._foreach_add_(moves, list(gradients))
    return moves
