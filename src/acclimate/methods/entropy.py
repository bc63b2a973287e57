"""Entropy minimisation on all parameters."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from acclimate.functional.across import batch_mean
from acclimate.functional.entropy import entropy
from acclimate.methods.gradient import GradientMethod
from acclimate.methods.method import MethodCard


class Entropy(GradientMethod):
    """Minimises the entropy of predictions over all parameters.

    Paper: Choi et al. 2022, figure 1 (b), https://arxiv.org/abs/2207.11707; the loss is that of
    Grandvalet & Bengio 2004. Official code: none.
    Moves all parameters. Returns the logits before the update. At TENT's learning rate it is apt to
    collapse, which is what the paper shows with it. Cost of a batch: 1 forward, 1 backward.
    """

    name: ClassVar[str] = "entropy"
    card: ClassVar[MethodCard] = MethodCard(
        paper="https://arxiv.org/abs/2207.11707",
        year=2022,
        moves="all parameters",
        backwards=1,
        shards=True,
        dense=True,
    )

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean entropy of the batch's predictions."""
        logits = self.run(x).logits
        return logits, batch_mean(entropy(logits))
