"""Information maximisation on all parameters: the main loss of SWR + NSP alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from acclimate.functional.entropy import information_maximization
from acclimate.methods.config import Config, GradientConfig, hp, uniform
from acclimate.methods.gradient import GradientMethod

#: The supplement's setting for Cityscapes-C, with batches of two images: running statistics are
#: kept and updated.
CITYSCAPES = {"optimizer": "adam", "lr": 1e-5, "statistics": "running", "statistics_momentum": 0.1}


@dataclass(frozen=True, kw_only=True)
class InfomaxConfig(GradientConfig):
    """Options of `infomax`; the defaults are those of SWR + NSP."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **GradientConfig.presets,
        "cityscapes": CITYSCAPES,
    }

    main_confidence: float = hp(
        0.2, search=uniform(0.1, 1.0), help="weight of the mean entropy, main task (λ_m1)"
    )
    main_diversity: float = hp(
        0.25, search=uniform(0.0, 1.0), help="weight of the entropy of the mean, main task (λ_m2)"
    )


class Infomax(GradientMethod):
    """Makes single predictions sure and their average over the batch even, over all parameters.

    Paper: Choi et al. 2022, eq. 3, https://arxiv.org/abs/2207.11707. Official code: none is public.
    Moves all parameters. Returns the logits before the update.
    Cost of a batch: 1 forward, 1 backward.
    """

    name: ClassVar[str] = "infomax"
    config_class: ClassVar[type[Config]] = InfomaxConfig
    config: InfomaxConfig
    paper: ClassVar[str] = "https://arxiv.org/abs/2207.11707"
    year: ClassVar[int] = 2022
    moves: ClassVar[str] = "all parameters"
    shards: ClassVar[bool] = True
    dense: ClassVar[bool] = True

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the main loss; terms are added by the base class."""
        first = self.run(x)
        main = information_maximization(
            first.logits, self.config.main_confidence, self.config.main_diversity
        )
        return first.logits, main
