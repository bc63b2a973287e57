"""Shift-agnostic weight regularisation: from gradient cosines to penalties, and the regulariser.

The cosines themselves, per-sample and batched, come from `gradients.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from acclimate.errors import InvalidConfig

#: Shapes that penalties can have over the layers: measured, and the supplement's variants. Its
#: figure has four designed by hand, of which the text says no more: the last four are ours.
SHAPES = ("measured", "vertical_flip", "horizontal_flip", "constant", "linear", "square", "step")


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


def shape_penalties(weights: Mapping[str, Tensor], shape: str) -> dict[str, Tensor]:
    """Return a variant of penalties, for comparison with the measured ones (supplement).

    Args:
        weights: One number a parameter, in the order of the model.
        shape: `"vertical_flip"`: what was held is left free and the reverse, 1 − w.
            `"horizontal_flip"`: the first parameter has the penalty of the last, and so on. The
            others ignore what was measured: `"constant"` is the measured mean everywhere;
            `"linear"`, `"square"` and `"step"` rise from 0 at the input to 1 at the output.

    >>> numbers = {"a": torch.tensor(0.2), "b": torch.tensor(0.5), "c": torch.tensor(1.0)}
    >>> [round(float(w), 2) for w in shape_penalties(numbers, "horizontal_flip").values()]
    [1.0, 0.5, 0.2]
    >>> [round(float(w), 2) for w in shape_penalties(numbers, "square").values()]
    [0.0, 0.25, 1.0]
    """
    if shape == "measured":
        return dict(weights)
    if shape == "vertical_flip":
        return {name: 1 - value for name, value in weights.items()}
    names, values = list(weights), list(weights.values())
    if any(value.numel() != 1 for value in values):
        raise InvalidConfig(
            "conflicting_options",
            f'penalties of shape "{shape}" need one number a parameter tensor, but they were '
            'prepared finer. Prepare again with granularity="tensor", or take "vertical_flip".',
            options=("shape", "granularity"),
        )
    if shape == "horizontal_flip":
        return dict(zip(names, reversed(values), strict=True))
    places = torch.linspace(0, 1, len(names), dtype=torch.float64)
    curves = {
        "constant": torch.full_like(places, float(torch.stack(values).double().mean())),
        "linear": places,
        "square": places**2,
        "step": (places >= 0.5).to(places.dtype),
    }
    return dict(zip(names, curves[shape].unbind(), strict=True))


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
