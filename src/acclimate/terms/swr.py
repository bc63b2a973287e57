"""Shift-agnostic weight regularisation (SWR) as a term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from acclimate.functional.swr_nsp import (
    SHAPES,
    add_penalty_gradient,
    penalties,
    shape_penalties,
)
from acclimate.options import Values, choice, hp, log_uniform, options
from acclimate.parts.penalty import Penalty
from acclimate.schema import Fields, Schema, TensorOf
from acclimate.terms.term import ActiveTerm, Term, register_term

if TYPE_CHECKING:
    from acclimate.methods.gradient import GradientMethod


@options
class SwrOptions(Values):
    """The options that the term shares with the methods that contain it."""

    strength: float = hp(
        250.0, low=0.0, search=log_uniform(10, 3000), help="weight of the regulariser (λ_r)"
    )
    anchor: str = hp(
        "previous",
        choices=("previous", "source"),
        search=choice("previous", "source"),
        help="anchor θ* of the regulariser: parameters before the last update, or the source's",
    )
    exponent: float = hp(
        0.0,
        low=0.0,
        help="exponent of the penalties (2 in the paper; 1 or 3); 0 uses them as prepared",
    )
    shape: str = hp(
        "measured",
        choices=SHAPES,
        help="profile of the penalties over the layers: as measured, or a variant of the "
        "supplement",
    )


@register_term
@options
class Swr(SwrOptions, Term):
    """Damps each parameter's update by its penalty: strength · Σ w ‖θ − θ*‖² (paper, eq. 1).

    The defaults are those of the paper. The penalties w come from the artifact.
    """

    name = "swr"
    needs = (Penalty,)

    def attach(self, method: GradientMethod) -> ActiveSwr:
        artifact = self.artifact_of(method)
        weights = artifact.part("penalty")
        if self.exponent:
            weights = penalties(artifact.part("cosine"), self.exponent)
        names = [name for name, _ in method.model.named_parameters() if name in weights]
        shaped = shape_penalties({name: weights[name] for name in names}, self.shape)
        return ActiveSwr(shaped, self.strength, self.anchor)


class ActiveSwr(ActiveTerm):
    """The active term. It is applied as its gradient, in closed form.

    `state` contains the anchors θ* by parameter name. With `"previous"` they are the values before
    the last update. The term is therefore zero in the first step, and damps the previous update
    from the second step on. (Anchors taken after the update would make it zero always.) Each
    penalty w is a number, or a tensor that broadcasts to the parameter.
    """

    state: dict[str, Tensor]

    def __init__(self, penalty: Mapping[str, Tensor], strength: float, anchor: str) -> None:
        super().__init__()
        self.anchor = anchor
        self.state = {}
        self._penalty = dict(penalty)
        # Factors of θ − θ*: plain numbers if every parameter has one penalty, otherwise tensors.
        self._numbers: dict[str, Any] = {n: 2 * strength * w for n, w in penalty.items()}
        if all(value.numel() == 1 for value in penalty.values()):
            self._numbers = {name: float(factor) for name, factor in self._numbers.items()}

    def schema(self, method: GradientMethod) -> Schema:
        moved = method.parameters_moved.items()
        return Fields({name: TensorOf(tuple(p.shape)) for name, p in moved}, partial=True)

    def start(self, method: GradientMethod) -> None:
        if self.anchor == "source":
            moved = method.parameters_moved.items()
            self.state = {name: parameter.detach().clone() for name, parameter in moved}

    def holds(self, name: str, limit: float) -> bool:
        return name in self._penalty and bool((self._penalty[name] >= limit).all())

    def add_gradients(
        self, names: Sequence[str], gradients: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Add the term's gradient; parameters without anchor or penalty are unchanged."""
        known = self.state.keys() & self._numbers.keys()
        chosen = [index for index, name in enumerate(names) if name in known]
        if not chosen:
            return gradients
        anchors = [self.state[names[index]] for index in chosen]
        factors = [self._numbers[names[index]] for index in chosen]
        added = add_penalty_gradient(
            [gradients[index] for index in chosen],
            [parameters[index].detach() for index in chosen],
            [a.to(parameters[index]) for index, a in zip(chosen, anchors, strict=True)],
            [
                c.to(a) if isinstance(c, Tensor) else c
                for c, a in zip(factors, anchors, strict=True)
            ],
        )
        result = list(gradients)
        for index, gradient in zip(chosen, added, strict=True):
            result[index] = gradient
        return result

    def after_update(self, before: Mapping[str, Tensor]) -> None:
        if self.anchor == "previous":
            self.state = dict(before)
