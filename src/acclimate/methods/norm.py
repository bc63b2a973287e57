from __future__ import annotations

from torch import nn

from acclimate.functional.norm import batch_norm_layers
from acclimate.methods.config import Config, MethodCard, Problem
from acclimate.methods.method import Method


class Norm(Method):
    """Normalises with the statistics of the test batch and learns nothing else.

    Also known as BN-1 and PredBN. Keeps nothing between batches.
    """

    name = "norm"
    card = MethodCard(
        authors="Nado et al.",
        year=2020,
        paper="https://arxiv.org/abs/2006.10963",
        code="https://github.com/DequanWang/tent",
        shards=True,
        dense=True,
    )

    @classmethod
    def check(cls, model: nn.Module, config: Config) -> list[Problem]:
        if batch_norm_layers(model):
            return []
        return [
            Problem(
                "normalisation",
                "no BatchNorm layer was found, so that nothing would change.",
                'Use "tent" or "swr_nsp", which learn on other layers too.',
            )
        ]
