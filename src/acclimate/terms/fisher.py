"""The Fisher penalty of EATA as a term."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from acclimate.options import hp, log_uniform, options
from acclimate.parts.fisher import FisherInformation
from acclimate.terms.term import ActiveTerm, Term, register_term

if TYPE_CHECKING:
    from acclimate.methods.gradient import GradientMethod


@register_term
@options
class FisherPenalty(Term):
    """Squared distance from the source's weights, weighted by the Fisher information of each."""

    name = "fisher"
    needs = (FisherInformation,)

    weight: float = hp(
        1.0, low=0.0, search=log_uniform(0.1, 5000), help="weight of the penalty (β)"
    )

    def attach(self, method: GradientMethod) -> ActiveFisherPenalty:
        return ActiveFisherPenalty(self.artifact_of(method).part("fisher"), self.weight)


class ActiveFisherPenalty(ActiveTerm):
    """The active penalty; `information` is by parameter name."""

    def __init__(self, information: Mapping[str, Tensor], weight: float) -> None:
        super().__init__()
        self._information, self._weight = dict(information), weight

    def loss(self, method: GradientMethod, x: Tensor) -> Tensor | None:
        if self._weight == 0:
            return None
        logits = method.first_pass(x).logits
        # At least single precision: bfloat16 would round small differences to zero.
        total = logits.new_zeros((), dtype=torch.promote_types(logits.dtype, torch.float32))
        source = method.initial()["modules"]
        for name, parameter in method.parameters_moved.items():
            if name in self._information:
                information = self._information[name].to(total)
                moved = parameter.to(total) - source[f"model.{name}"].to(total)
                total = total + (information * moved**2).sum()
        return self._weight * total
