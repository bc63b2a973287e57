from __future__ import annotations

from torch import Tensor

from acclimate.functional.across import batch_mean
from acclimate.methods.config import EntropyConfig
from acclimate.methods.gradient import NormLayersMethod


class Tent(NormLayersMethod):
    """Minimises the entropy of predictions over scale and shift of the normalisation layers.

    The authors' code takes BatchNorm2d only, which is the same on a model that has no other. It
    also runs the model in training mode, and so with dropout; here dropout stays off.
    `GradientConfig` says which values of the presets are published. With `entropy="come"` it is
    COME's version, for which the authors publish no values on CIFAR.
    """

    name = "tent"
    config_class = EntropyConfig
    config: EntropyConfig
    card = NormLayersMethod.card.variant(
        authors="Wang et al.",
        year=2021,
        paper="https://arxiv.org/abs/2006.10726",
        code="https://github.com/DequanWang/tent",
        shards=True,
        dense=True,
    )

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = self.run(x).logits
        return logits, batch_mean(self.config.entropy_of(logits))
