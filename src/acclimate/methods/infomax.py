from __future__ import annotations

from torch import Tensor

from acclimate.functional.entropy import information_maximization
from acclimate.methods.config import GradientConfig, hp, options, uniform
from acclimate.methods.gradient import GradientMethod

#: The supplement's setting for Cityscapes-C; see `GradientConfig` for what of it is ours.
CITYSCAPES = GradientConfig.presets["cityscapes"]


@options
class InfomaxConfig(GradientConfig):
    """Options of `infomax`; the defaults are those of SWR + NSP."""

    main_confidence: float = hp(
        0.2, search=uniform(0.1, 1.0), help="weight of the mean entropy, main task (λ_m1)"
    )
    main_diversity: float = hp(
        0.25, search=uniform(0.0, 1.0), help="weight of the entropy of the mean, main task (λ_m2)"
    )


class Infomax(GradientMethod):
    """Makes single predictions sure and their average over the batch even, over all parameters.

    Equation 3 of the paper, the main loss of SWR + NSP alone.
    """

    name = "infomax"
    config_class = InfomaxConfig
    config: InfomaxConfig
    card = GradientMethod.card.variant(
        authors="Choi et al.",
        year=2022,
        paper="https://arxiv.org/abs/2207.11707",
        shards=True,
        dense=True,
    )

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = self.run(x)
        main = information_maximization(
            first.logits, self.config.main_confidence, self.config.main_diversity
        )
        return first.logits, main
