from __future__ import annotations

from torch import Tensor

from acclimate.functional.across import batch_mean
from acclimate.methods.config import EntropyConfig
from acclimate.methods.gradient import GradientMethod


class Entropy(GradientMethod):
    """Minimises the entropy of predictions over all parameters.

    Figure 1 (b) of the paper; the loss is that of Grandvalet & Bengio 2004. At TENT's learning rate
    it is apt to collapse, which is what the paper shows with it.
    """

    name = "entropy"
    config_class = EntropyConfig
    config: EntropyConfig
    card = GradientMethod.card.variant(
        authors="Choi et al.",
        year=2022,
        paper="https://arxiv.org/abs/2207.11707",
        shards=True,
        dense=True,
    )

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.run(x).logits
        return logits, batch_mean(self.config.entropy_of(logits))
