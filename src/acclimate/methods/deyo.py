from __future__ import annotations

import math

import torch
from torch import Tensor

from acclimate.functional.entropy import log_probs
from acclimate.functional.image_ops import shuffle_patches
from acclimate.functional.norm import Statistics
from acclimate.methods.config import hp, options, published, uniform
from acclimate.methods.sar import TOP_OF_RESNET50, SkipTop, SkipTopConfig
from acclimate.methods.tent import Tent


@options
class DeyoConfig(SkipTopConfig):
    """Options of `deyo`; the defaults are the authors', with the benchmarks' rate on CIFAR-10."""

    presets = published(
        "cifar10",
        "cifar100",
        imagenet={"optimizer": "sgd", "lr": 2.5e-4, "min_drop": 0.3, "skip_top": TOP_OF_RESNET50},
    )

    max_entropy: float = hp(
        0.5,
        low=0.0,
        search=uniform(0.2, 0.8),
        help="learn from predictions whose entropy is under this share of log K",
    )
    weight_entropy: float = hp(
        0.4, low=0.0, help="entropy of weight one, as a share of log K; surer samples weigh more"
    )
    min_drop: float = hp(
        0.2,
        low=-1.0,
        high=1.0,
        search=uniform(0.0, 0.5),
        help="learn if shuffling the patches lowers the probability of the predicted class by more "
        "than this (τ of PLPD); the authors' 0.3 for mild, 0.2 for wild streams",
    )
    n_patches: int = hp(4, low=1, help="patches along a side of the image")


class Deyo(SkipTop):
    """Minimises the weighted entropy of sure predictions that shuffled patches would change.

    What is sure is predicted again with its patches shuffled; samples whose predicted class then
    loses probability are learned from, more so the surer they were and the more it loses. With
    batch statistics that second pass has those of the shuffled, sure samples alone, as in the
    authors' code; a single one has none, and is normalised with the source's. Of their three ways
    to destroy an object, this is the one they recommend. The share `skip_top` of the layers, next
    to the output, does not move; the authors' filter is by name, and also leaves out layers called
    `norm` wherever they are; here names do not matter (see SAR).
    """

    name = "deyo"
    config_class = DeyoConfig
    config: DeyoConfig
    card = Tent.card.variant(
        authors="Lee et al.",
        year=2024,
        paper="https://arxiv.org/abs/2403.07366",
        code="https://github.com/Jhyun17/DeYO",
        forwards=2,
    )

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = self.run(x).logits
        each = self.config.entropy_of(logits)
        most = math.log(logits.shape[1])
        sure = each.detach() < self.config.max_entropy * most
        if not bool(sure.any()):
            return logits, None
        each = each[sure]
        drop = self._drop(x[sure], logits.detach()[sure])
        chosen = drop > self.config.min_drop
        if not bool(chosen.any()):
            return logits, None
        weight = (self.config.weight_entropy * most - each.detach()).exp() + drop.exp()
        return logits, (weight * each)[chosen].mean()

    @torch.no_grad()
    def _drop(self, x: Tensor, logits: Tensor) -> Tensor:
        """Return what the predicted class loses in probability when the patches are shuffled."""
        shuffled = shuffle_patches(x, self.config.n_patches, self.generator)
        statistics: Statistics | None = "source" if self.is_single(x) else None
        other = self.run(shuffled, moves=False, statistics=statistics).logits
        before, label = log_probs(logits).exp().max(dim=1)
        return before - log_probs(other).exp().gather(1, label[:, None]).squeeze(1)
