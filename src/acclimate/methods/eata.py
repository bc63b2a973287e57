"""ETA with a regulariser against forgetting (EATA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from acclimate.methods.config import Config, Presets, hp, log_uniform
from acclimate.methods.eta import Eta, EtaConfig
from acclimate.methods.method import MethodCard
from acclimate.parts.fisher import FisherInformation
from acclimate.parts.part import Part
from acclimate.terms.fisher import FisherPenalty
from acclimate.terms.term import Term


@dataclass(frozen=True, kw_only=True)
class EataConfig(EtaConfig):
    """Options of `eata`; the defaults are those published for CIFAR-10 at batches of 200."""

    presets: ClassVar[Presets] = {
        **EtaConfig.presets,
        "imagenet": {**EtaConfig.presets["imagenet"], "fisher_weight": 2000.0},
    }

    fisher_weight: float = hp(
        1.0,
        low=0.0,
        search=log_uniform(0.1, 5000),
        help="weight of the penalty on leaving the source's weights (β); 0 is ETA",
    )


class Eata(Eta):
    """Does as ETA, and holds the weights that matter to the source near their source values.

    Paper: Niu et al. 2022, https://arxiv.org/abs/2204.02610.
    Official code: https://github.com/mr-eggplant/EATA.
    The penalty is the squared distance from the source weights, each weighed by its Fisher
    information, which `prepare` measures on source images without using their labels. It acts only
    where a sample was chosen, as in the authors' code.
    Moves scale and shift of all normalisation layers; the authors' code takes BatchNorm2d only.
    Returns the logits before the update. Cost of a batch: 1 forward, 1 backward.
    """

    name: ClassVar[str] = "eata"
    config_class: ClassVar[type[Config]] = EataConfig
    config: EataConfig
    card: ClassVar[MethodCard] = MethodCard(
        paper="https://arxiv.org/abs/2204.02610",
        code="https://github.com/mr-eggplant/EATA",
        year=2022,
        moves="scale and shift of normalisation layers",
        backwards=1,
    )
    needs: ClassVar[tuple[type[Part], ...]] = (FisherInformation,)

    @classmethod
    def own_terms(cls, config: EataConfig) -> tuple[Term, ...]:
        """Return the penalty on leaving the source's weights."""
        return (FisherPenalty(weight=config.fisher_weight),)
