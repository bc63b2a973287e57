from __future__ import annotations

from torch import Tensor

from acclimate.functional.entropy import correlation_loss
from acclimate.methods.alpha_bn import MixingMethod, MixtureConfig
from acclimate.methods.config import GradientConfig, choice, hp, options, published, uniform
from acclimate.methods.gradient import NormLayersMethod


@options
class CoreConfig(MixtureConfig, GradientConfig):
    """Options of `core`; the share of the source and the form of the loss are not known."""

    presets = published("cifar10", "cifar100")

    correlation: str = hp(
        "raw",
        choices=("raw", "balanced"),
        search=choice("raw", "balanced"),
        help="loss: the mean correlation of different classes, or with every class counted alike",
    )
    temperature: float = hp(
        1.0, low=1e-3, search=uniform(1.0, 4.0), help="the logits are divided by it (T)"
    )
    weighted: bool = hp(False, help="let sure samples count more, by 1 + exp(−entropy)")


class Core(MixingMethod, NormLayersMethod):
    """Makes classes less often predicted together, under mixed BatchNorm statistics.

    The text at hand says "pairwise class correlation" and mixed statistics, and not the form of the
    loss nor the share of the source; both are options here, the optimiser is TENT's, and no figure
    of the paper is promised. With `correlation="raw"` the loss equals the mean of 1 − Σ p², a
    bounded relative of the entropy; with `"balanced"`, `temperature=2.5` and `weighted=True` it is
    minimum class confusion (Jin et al. 2020).
    """

    name = "core"
    config_class = CoreConfig
    config: CoreConfig
    card = NormLayersMethod.card.variant(
        authors="You et al.",
        year=2021,
        paper="https://arxiv.org/abs/2110.04065",
        reconstruction="the form of the loss and the share of the source statistics are not known",
    )

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.run(x).logits
        return logits, correlation_loss(
            logits,
            balanced=self.config.correlation == "balanced",
            temperature=self.config.temperature,
            weighted=self.config.weighted,
        )
