"""The main loss with nearest source prototypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from acclimate.methods.config import Config, Presets
from acclimate.methods.infomax import Infomax, InfomaxConfig
from acclimate.methods.method import MethodCard
from acclimate.parts.part import Part
from acclimate.parts.prototypes import Prototypes
from acclimate.terms.nsp import Nsp, NspOptions
from acclimate.terms.term import Term


@dataclass(frozen=True, kw_only=True)
class NspConfig(NspOptions, InfomaxConfig):
    """Options of `nsp`; the defaults are the paper's."""

    presets: ClassVar[Presets] = InfomaxConfig.presets


class NspMethod(Infomax):
    """Trains all parameters on the main loss, and the encoder towards the source's prototypes.

    Paper: Choi et al. 2022, table 2, https://arxiv.org/abs/2207.11707. Official code: none is
    public. Moves all parameters; the auxiliary loss moves the encoder only. Returns the logits
    before the update. The paper leaves NSP on pixels to future work; what is done here is ours:
    every pixel of the head's input is a sample, at the resolution it has there, and the transformed
    view moves none. Cost of a batch: 2 forwards and 2 backwards, the second ones on a transformed
    view.
    """

    name: ClassVar[str] = "nsp"
    config_class: ClassVar[type[Config]] = NspConfig
    config: NspConfig
    card: ClassVar[MethodCard] = MethodCard(
        paper="https://arxiv.org/abs/2207.11707",
        year=2022,
        moves="all parameters",
        forwards=2,
        backwards=2,
        shards=True,
        dense=True,
    )
    needs: ClassVar[tuple[type[Part], ...]] = (Prototypes,)

    @classmethod
    def own_terms(cls, config: NspConfig) -> tuple[Term, ...]:
        """Return NSP."""
        return (Nsp.taken_from(config),)
