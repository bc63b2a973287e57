from __future__ import annotations

from torch import Tensor

from acclimate.functional.entropy import log_probs
from acclimate.methods.config import GradientConfig, hp, options, published, uniform
from acclimate.methods.gradient import NormLayersMethod


@options
class RplConfig(GradientConfig):
    """Options of `rpl`; the defaults are those of the benchmarks on CIFAR-10."""

    # On ImageNet the benchmark of CCC has plain momentum, that of ROID has Nesterov's form.
    presets = published("cifar10", "cifar100", imagenet={"optimizer": "sgd", "lr": 5e-4})

    exponent: float = hp(
        0.8,
        low=1e-3,
        high=1.0,
        search=uniform(0.2, 1.0),
        help="of the loss (q): towards 0 it is the cross entropy, at 1 the mean absolute error",
    )


class Rpl(NormLayersMethod):
    """Minimises the generalised cross entropy with the model's own most likely classes.

    The loss is that of Zhang & Sabuncu 2018, https://arxiv.org/abs/1805.07836. Here it runs as in
    the benchmarks: online, one update a batch.
    """

    name = "rpl"
    config_class = RplConfig
    config: RplConfig
    card = NormLayersMethod.card.variant(
        authors="Rusak et al.",
        year=2022,
        paper="https://arxiv.org/abs/2104.12928",
        code="https://github.com/bethgelab/robustness",
    )

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.run(x).logits
        sure = log_probs(logits).max(dim=1).values
        # In log space, and exact where the exponent is small and the power near one.
        return logits, -((self.config.exponent * sure).expm1() / self.config.exponent).mean()
