"""The main loss with shift-agnostic weight regularisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from acclimate.methods.composition import Composition, SwrOptions
from acclimate.methods.config import Config
from acclimate.methods.infomax import CITYSCAPES, Infomax, InfomaxConfig

#: The paper changes the strength only on ImageNet-C; optimiser and rate there are TENT's.
IMAGENET = {"optimizer": "sgd", "lr": 2.5e-4, "strength": 3000.0}

PRESETS: dict[str, dict[str, Any]] = {
    "imagenet": IMAGENET,
    "cityscapes": {**CITYSCAPES, "strength": 40.0, "anchor": "source"},
}


@dataclass(frozen=True, kw_only=True)
class SwrConfig(SwrOptions, InfomaxConfig):
    """Options of `swr`; the defaults are the paper's."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS


class SwrMethod(Infomax):
    """Trains all parameters on the main loss, damped by shift-agnostic penalties.

    Paper: Choi et al. 2022, table 2, https://arxiv.org/abs/2207.11707. Official code: none is
    public. Moves all parameters. Returns the logits before the update. The supplement adapts models
    that predict every pixel with it: `preset="cityscapes"`, batches of two images.
    Cost of a batch: 1 forward, 1 backward.
    """

    name: ClassVar[str] = "swr"
    config_class: ClassVar[type[Config]] = SwrConfig
    config: SwrConfig
    needs: ClassVar[tuple[str, ...]] = ("penalty",)
    shards: ClassVar[bool] = True
    dense: ClassVar[bool] = True

    @classmethod
    def own_terms(cls, config: SwrConfig) -> Composition:
        """Return the regulariser."""
        return Composition(regularizer=SwrOptions.taken_from(config))
