from __future__ import annotations

from torch import Tensor, nn

from acclimate.functional.across import batch_mean
from acclimate.functional.entropy import entropy
from acclimate.functional.norm import norm_parameters
from acclimate.methods.config import Config, GradientConfig
from acclimate.methods.gradient import GradientMethod
from acclimate.methods.method import MethodCard, Problem


class Tent(GradientMethod):
    """Minimises the entropy of predictions over scale and shift of the normalisation layers.

    The authors' code takes BatchNorm2d only, which is the same on a model that has no other. It
    also runs the model in training mode, and so with dropout; here dropout stays off.
    `GradientConfig` says which values of the presets are published.
    """

    name = "tent"
    config_class = GradientConfig
    card = MethodCard(
        authors="Wang et al.",
        year=2021,
        paper="https://arxiv.org/abs/2006.10726",
        code="https://github.com/DequanWang/tent",
        moves="scale and shift of normalisation layers",
        backwards=1,
        shards=True,
        dense=True,
    )

    @classmethod
    def trainable(cls, model: nn.Module, config: GradientConfig) -> dict[str, nn.Parameter]:
        """Return scale and shift of the normalisation layers that are not frozen."""
        return {name: p for name, p in norm_parameters(model).items() if p.requires_grad}

    @classmethod
    def check(cls, model: nn.Module, config: Config) -> list[Problem]:
        """Report a model without trainable normalisation layers."""
        if norm_parameters(model):
            return super().check(model, config)
        return [
            Problem(
                "normalisation",
                "no BatchNorm, InstanceNorm, GroupNorm, LayerNorm or RMSNorm with parameters was "
                f"found; {cls.name} moves only those.",
                'Use "swr_nsp", which trains other layers.',
            )
        ]

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the mean entropy of the batch's predictions."""
        logits = self.run(x).logits
        return logits, batch_mean(entropy(logits))
