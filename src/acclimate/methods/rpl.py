"""Robust pseudo-labels: a bounded cross entropy with the model's own predictions (RPL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from acclimate.functional.entropy import log_probs
from acclimate.methods.config import Config, GradientConfig, Presets, hp, uniform
from acclimate.methods.method import MethodCard
from acclimate.methods.tent import Tent


@dataclass(frozen=True, kw_only=True)
class RplConfig(GradientConfig):
    """Options of `rpl`; the defaults are those of the benchmarks on CIFAR-10."""

    # On ImageNet the benchmark of CCC has plain momentum, that of ROID has Nesterov's form.
    presets: ClassVar[Presets] = {
        "cifar10": {},
        "cifar100": {},
        "imagenet": {"optimizer": "sgd", "lr": 5e-4},
    }

    exponent: float = hp(
        0.8,
        low=1e-3,
        high=1.0,
        search=uniform(0.2, 1.0),
        help="of the loss (q): towards 0 it is the cross entropy, at 1 the mean absolute error",
    )


class Rpl(Tent):
    """Minimises the generalised cross entropy with the model's own most likely classes.

    Paper: Rusak et al. 2022, https://arxiv.org/abs/2104.12928; the loss is that of Zhang &
    Sabuncu 2018, https://arxiv.org/abs/1805.07836.
    Official code: https://github.com/bethgelab/robustness.
    Here it runs as in the benchmarks: online, one update a batch.
    Moves scale and shift of all normalisation layers. Returns the logits before the update.
    Cost of a batch: 1 forward, 1 backward.
    """

    name: ClassVar[str] = "rpl"
    config_class: ClassVar[type[Config]] = RplConfig
    config: RplConfig
    card: ClassVar[MethodCard] = MethodCard(
        paper="https://arxiv.org/abs/2104.12928",
        code="https://github.com/bethgelab/robustness",
        year=2022,
        moves="scale and shift of normalisation layers",
        backwards=1,
    )

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of (1 − p^q) / q over the batch, p the largest probability."""
        logits = self.run(x).logits
        sure = log_probs(logits).max(dim=1).values
        # In log space, and exact where the exponent is small and the power near one.
        return logits, -((self.config.exponent * sure).expm1() / self.config.exponent).mean()
