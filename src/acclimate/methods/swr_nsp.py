"""The paper's method: shift-agnostic weight regularisation and nearest source prototypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from acclimate.methods.config import Config, Presets
from acclimate.methods.method import MethodCard
from acclimate.methods.nsp import NspConfig, NspMethod
from acclimate.methods.swr import PRESETS
from acclimate.parts.part import Part
from acclimate.parts.penalty import Penalty
from acclimate.parts.prototypes import Prototypes
from acclimate.terms.nsp import Nsp
from acclimate.terms.swr import Swr, SwrOptions
from acclimate.terms.term import Term


@dataclass(frozen=True, kw_only=True)
class SwrNspConfig(SwrOptions, NspConfig):
    """Options of `swr_nsp`; the defaults are the paper's."""

    presets: ClassVar[Presets] = PRESETS


class SwrNsp(NspMethod):
    """Trains all parameters, damped by shift-agnostic penalties, towards the source's prototypes.

    Paper: Choi et al. 2022, https://arxiv.org/abs/2207.11707. Official code: none is public.
    Moves all parameters; the auxiliary loss moves the encoder only. Returns the logits before the
    update. On pixels, where the paper leaves NSP to future work, it is ours: see `nsp`.
    Cost of a batch: 2 forwards and 2 backwards, the second ones on a transformed view.

    Where the text leaves something open, these choices are ours:

    - Prototypes without a projector are exponential moving averages of features. The supplement
      says so of its table of prototypes; where it describes the model without a projector, it says
      "averaging". An average that moves is what eq. 4 has, and it is the same with a projector.
    - While the projector is trained, prototypes move before the loss of the batch is computed. The
      text does not give the order; in figure 4 the steps that make prototypes have the first
      numbers.
    - `preset="imagenet"`: the supplement has batches and rate "following TENT", and no optimiser.
      SGD with momentum 0.9 is TENT's there, and Nesterov's form the default of TENT's code.
    - `preset="cityscapes"`: rate, strength, anchor and running statistics are the supplement's;
      Adam is not named, but is the optimiser of the frameworks that the paper uses on CIFAR. That
      statistics are moved and used in one pass is ours as well: see `GradientConfig`.
    """

    name: ClassVar[str] = "swr_nsp"
    config_class: ClassVar[type[Config]] = SwrNspConfig
    config: SwrNspConfig
    card: ClassVar[MethodCard] = MethodCard(
        paper="https://arxiv.org/abs/2207.11707",
        year=2022,
        moves="all parameters",
        forwards=2,
        backwards=2,
        shards=True,
        dense=True,
    )
    needs: ClassVar[tuple[type[Part], ...]] = (Penalty, Prototypes)

    @classmethod
    def own_terms(cls, config: SwrNspConfig) -> tuple[Term, ...]:  # type: ignore[override]
        """Return SWR and NSP."""
        return Swr.taken_from(config), Nsp.taken_from(config)
