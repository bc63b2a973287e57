from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.functional.entropy import log_probs
from acclimate.functional.views import VIEW_SETS, apply_views, get_views
from acclimate.methods.config import hp, options, published
from acclimate.methods.swr import IMAGENET, SwrConfig, SwrMethod


@options
class SwrFixmatchConfig(SwrConfig):
    """Options of `swr_fixmatch`; threshold and weight are FixMatch's own."""

    presets = published("cifar10", "cifar100", imagenet=IMAGENET)

    threshold: float = hp(0.95, low=0.0, high=1.0, help="learn from predictions as sure as this")
    weight: float = hp(1.0, low=0.0, help="of the consistency loss")
    strong_views: str = hp(
        "projector", choices=tuple(VIEW_SETS), help="transforms that make the strong view"
    )


class SwrFixmatch(SwrMethod):
    """Trains all parameters, damped by SWR, to predict on a strong view what is sure on the batch.

    In the supplement; FixMatch is Sohn et al. 2020, https://arxiv.org/abs/2001.07685. Here the
    batch itself stands for the weak view, and the strong one has the transforms that the projector
    is trained with; threshold and weight are those of the FixMatch code the supplement names. The
    second forward is on the strong view; the backward is through both.
    """

    name = "swr_fixmatch"
    config_class = SwrFixmatchConfig
    config: SwrFixmatchConfig
    card = SwrMethod.card.variant(
        authors="Choi et al.",
        year=2022,
        paper="https://arxiv.org/abs/2207.11707",
        forwards=2,
        reconstruction="the paper does not give its settings of FixMatch",
    )

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits, main = super().loss(x)
        views = get_views(self.config.strong_views)
        strong = self.run(apply_views(views, x, self.normalization, self.generator), moves=False)
        with torch.no_grad():
            sure, labels = log_probs(logits).exp().max(dim=1)
            chosen = (sure >= self.config.threshold).to(sure.dtype)
        each = F.nll_loss(log_probs(strong.logits), labels, reduction="none")
        return logits, main + self.config.weight * (each * chosen).mean()
