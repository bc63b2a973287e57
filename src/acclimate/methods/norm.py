"""Prediction-time batch normalisation (BN-1)."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from acclimate.functional.norm import batch_norm_layers
from acclimate.methods.config import Config
from acclimate.methods.method import Method, MethodCard, Problem


class Norm(Method):
    """Normalises with the statistics of the test batch and learns nothing else.

    Paper: Nado et al. 2020, https://arxiv.org/abs/2006.10963. Also known as BN-1 and PredBN.
    Official code: https://github.com/DequanWang/tent (norm.py).
    Moves no parameter and keeps nothing between batches. Returns the logits of its one forward.
    Cost of a batch: 1 forward.
    """

    name: ClassVar[str] = "norm"
    card: ClassVar[MethodCard] = MethodCard(
        paper="https://arxiv.org/abs/2006.10963",
        code="https://github.com/DequanWang/tent",
        year=2020,
        shards=True,
        dense=True,
    )

    @classmethod
    def check(cls, model: nn.Module, config: Config) -> list[Problem]:
        """Report a model without BatchNorm, on which nothing would change."""
        if batch_norm_layers(model):
            return []
        n_layers = sum(1 for _ in model.modules())
        return [
            Problem(
                "normalisation",
                f"no BatchNorm layer was found ({n_layers} modules looked at), so that nothing "
                "would change.",
                'Use "tent" or "swr_nsp", which learn on other layers too.',
            )
        ]
