"""The main loss with shift-agnostic weight regularisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from acclimate.methods.config import Config, GradientConfig, Presets
from acclimate.methods.infomax import CITYSCAPES, Infomax, InfomaxConfig
from acclimate.methods.method import MethodCard
from acclimate.parts.part import Part
from acclimate.parts.penalty import Penalty
from acclimate.terms.swr import Swr, SwrOptions
from acclimate.terms.term import Term

#: The supplement changes the strength only, and has the rate of TENT on ImageNet; it does not name
#: the optimiser, and TENT's is taken here.
IMAGENET = {**GradientConfig.presets["imagenet"], "strength": 3000.0}

PRESETS: dict[str, Mapping[str, Any]] = {
    "cifar10": {},
    "cifar100": {},
    "imagenet": IMAGENET,
    "cityscapes": {**CITYSCAPES, "strength": 40.0, "anchor": "source"},
}


@dataclass(frozen=True, kw_only=True)
class SwrConfig(SwrOptions, InfomaxConfig):
    """Options of `swr`; the defaults are the paper's."""

    presets: ClassVar[Presets] = PRESETS


class SwrMethod(Infomax):
    """Trains all parameters on the main loss, damped by shift-agnostic penalties.

    Paper: Choi et al. 2022, table 2, https://arxiv.org/abs/2207.11707. Official code: none is
    public. Moves all parameters. Returns the logits before the update. The supplement adapts models
    that predict every pixel with it: `preset="cityscapes"`, batches of two images. There BatchNorm
    moves its running statistics and uses them in the same pass; `GradientConfig` says what of this
    preset is the supplement's and what is ours. Cost of a batch: 1 forward, 1 backward.
    """

    name: ClassVar[str] = "swr"
    config_class: ClassVar[type[Config]] = SwrConfig
    config: SwrConfig
    card: ClassVar[MethodCard] = MethodCard(
        paper="https://arxiv.org/abs/2207.11707",
        year=2022,
        moves="all parameters",
        backwards=1,
        shards=True,
        dense=True,
    )
    needs: ClassVar[tuple[type[Part], ...]] = (Penalty,)

    @classmethod
    def own_terms(cls, config: SwrConfig) -> tuple[Term, ...]:
        """Return SWR."""
        return (Swr.taken_from(config),)
