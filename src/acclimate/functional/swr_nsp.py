"""The formulas of the paper: penalties from gradient cosines (SWR), and source prototypes (NSP).

The inner products of gradients that cosines are made of come from `per_sample.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.errors import BadInput, InvalidConfig, name_some
from acclimate.functional.per_sample_rules import Granularity, Products
from acclimate.functional.precision import at_least_float32, widest_dtype

#: Profiles of the penalties over the layers: as measured, and the variants of the supplement. Its
#: figure shows four designed by hand without a definition; the last four are our interpretation.
SHAPES = ("measured", "vertical_flip", "horizontal_flip", "constant", "linear", "square", "step")
#: The smallest norm to divide by, as in `torch.nn.functional.cosine_similarity`.
SMALLEST_NORM = 1e-8


class CosineSum(NamedTuple):
    """The cosines of one parameter, summed over the samples.

    Shapes are () for "tensor" and "module", (C, 1, ...) for "channel", and that of the parameter
    for "parameter".
    """

    total: Tensor  # float64, on the CPU
    seen: Tensor  # whether any sample had a gradient other than zero in both views


def unit_shape(shape: tuple[int, ...], granularity: str) -> tuple[int, ...]:
    """Return the shape of the cosines of a parameter of that shape; it broadcasts to it.

    >>> unit_shape((8, 3, 5), "channel"), unit_shape((8, 3, 5), "tensor")
    ((8, 1, 1), ())
    """
    if granularity == "parameter":
        return shape
    return (shape[0],) + (1,) * (len(shape) - 1) if granularity == "channel" and shape else ()


class CosineSums:
    """Sums cosines over samples for every parameter, from inner products of gradients.

    A unit has one cosine: it is a tensor, a module, a channel or a single weight.
    """

    def __init__(self, parameters: Mapping[str, Tensor], granularity: Granularity) -> None:
        self._parameters, self._granularity = parameters, granularity
        self._sums: dict[str, Tensor] = {}  # by parameter or module: total and seen
        self._waiting: dict[str, list[Products]] = {}  # by module, until all its tensors are done

    def add(self, name: str, blocks: Iterable[Products]) -> None:
        """Add the inner products of one parameter for all pairs of a chunk."""
        if self._granularity == "module":
            between, squares = (torch.cat(parts) for parts in zip(*blocks, strict=True))
            self._waiting.setdefault(self._unit(name), []).append((between, squares))
        else:
            for between, squares in blocks:
                self._count(name, between, squares)

    def close_chunk(self) -> None:
        """Add the cosines of modules, whose inner products are the sums over their tensors."""
        for unit, parts in self._waiting.items():
            self._count(unit, *(torch.stack(v).sum(0) for v in zip(*parts, strict=True)))
        self._waiting.clear()

    def result(self) -> dict[str, CosineSum]:
        """Return the sums so far, by parameter name; raise BadInput if some are not finite."""
        result = {}
        for name, parameter in self._parameters.items():
            shape = unit_shape(tuple(parameter.shape), self._granularity)
            sums = self._sums.get(self._unit(name), torch.zeros(2, *shape))
            total, seen = sums.reshape(2, *shape).to("cpu", torch.float64, copy=True)
            result[name] = CosineSum(total, seen > 0)
        broken = tuple(name for name in result if not result[name].total.isfinite().all())
        if broken:
            raise BadInput(
                "not_finite",
                "Expected finite gradients, found infinite or undefined ones in "
                f"{name_some(broken)}. Check the samples and the model's weights for such values.",
                found=broken,
            )
        return result

    def _unit(self, name: str) -> str:
        return name.rpartition(".")[0] if self._granularity == "module" else name

    def _count(self, unit: str, between: Tensor, squares: Tensor) -> None:
        dtype = widest_dtype(between.device)
        # A Gram product can be negative by rounding if the gradient is zero.
        norms = squares.to(dtype).clamp_min(0).sqrt()
        seen = ((norms[0::2] > 0) & (norms[1::2] > 0)).any(0)
        norms = norms.clamp_min(SMALLEST_NORM)
        total = (between.to(dtype) / (norms[0::2] * norms[1::2])).sum(0)
        self._sums[unit] = self._sums.get(unit, 0) + torch.stack([total, seen.to(dtype)])


def penalties(cosines: Mapping[str, Tensor], exponent: float = 2.0) -> dict[str, Tensor]:
    """Return penalties in [0, 1] from mean gradient cosines (paper, eq. 2).

    The cosines of all units are scaled together to [0, 1] (minimum and maximum over the model),
    then raised to `exponent`.

    The paper does not define three cases. They are handled conservatively: a unit without a
    gradient (NaN cosine) gets penalty 1 and is excluded from minimum and maximum; if all cosines
    are equal, every penalty is 1; a model without any measured unit gets penalty 1 throughout.
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

    There is one number per parameter, in the order of the model. `"vertical_flip"`: 1 − w, which
    swaps strong and weak penalties. `"horizontal_flip"`: the first parameter has the penalty of the
    last, and so on. `"constant"`: the measured mean everywhere. `"linear"`, `"square"` and `"step"`
    ignore the measured values and rise from 0 at the input to 1 at the output.

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
            f'Expected one penalty per parameter tensor for the shape "{shape}", found penalties '
            'of a finer granularity. Prepare again with granularity="tensor", or use '
            '"vertical_flip".',
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
    """Return the value of the regulariser, strength · Σ w ‖θ − θ*‖² (paper, eq. 1)."""
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
    """Return gradients plus those of the regulariser, 2 · strength · w · (θ − θ*).

    The coefficients are 2 · strength · w for each parameter: plain numbers, or tensors that
    broadcast to the parameter. The gradients are unchanged, since autograd may return the same or
    an expanded tensor for several parameters.
    """
    # Multi-tensor operations need few kernel launches for the whole model instead of three per
    # tensor.
    moves = list(torch._foreach_sub(list(parameters), list(anchors)))
    torch._foreach_mul_(moves, coefficients)
    torch._foreach_add_(moves, list(gradients))
    return moves


@torch.no_grad()
def move_prototypes(
    prototypes: Tensor, seen: Tensor, embeddings: Tensor, y: Tensor, momentum: float = 0.99
) -> tuple[Tensor, Tensor]:
    """Return prototypes updated with one batch of labelled embeddings (paper, eq. 4).

    Each sample updates the prototype of its class: q ← momentum · q + (1 − momentum) · z. The first
    embedding of a class initialises its prototype. The samples of one class are summed in closed
    form, with weights momentum^(number of later samples of the class).

    Args:
        prototypes: Prototypes (K, d); rows of classes that are not in `seen` are ignored.
        seen: Classes that have a prototype, (K,) boolean; also returned, with those of the batch.
        embeddings: Embeddings (B, d), oldest first.
        y: Class numbers (B,).
        momentum: α in the paper.
    """
    prototypes, seen = prototypes.clone(), seen.clone()
    embeddings = embeddings.to(prototypes.dtype)
    for label in sorted(set(y.tolist())):
        samples = embeddings[y == label]
        if not seen[label]:
            prototypes[label] = samples[0]
            seen[label] = True
            samples = samples[1:]
        n = len(samples)
        ages = torch.arange(n - 1, -1, -1, device=samples.device, dtype=prototypes.dtype)
        weights = (1 - momentum) * momentum**ages
        prototypes[label] = momentum**n * prototypes[label] + weights @ samples
    return prototypes, seen


def prototype_logits(embeddings: Tensor, prototypes: Tensor, temperature: float = 0.1) -> Tensor:
    """Return cosine similarities to all prototypes, divided by the temperature (paper, eq. 5).

    (B, d), (K, d) → (B, K): the logits of the nearest-prototype classifier; their softmax is ŷ.
    They are in at least float32, because dividing by a small temperature amplifies the rounding of
    half precision.
    """
    embeddings = at_least_float32(embeddings)
    with torch.autocast(embeddings.device.type, enabled=False):
        directions = F.normalize(prototypes.to(embeddings.dtype), dim=-1)
        return F.normalize(embeddings, dim=-1) @ directions.T / temperature
