"""AugMix: images mixed with several chains of simple operations, and a loss that wants agreement.

Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty",
ICLR 2020, https://arxiv.org/abs/1912.02781.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.functional.augmix import AugMixOptions, draw, mix, shift_and_flip
from acclimate.training.objectives import Objective


def jensen_shannon(logits: Tensor) -> Tensor:
    """Return the mean Jensen-Shannon divergence of several predictions for the same images.

    Args:
        logits: Shape (predictions, batch, classes).
    """
    log_probs = F.log_softmax(logits, dim=2)
    log_mean = torch.logsumexp(log_probs, dim=0) - math.log(len(logits))
    divergences = (log_probs.exp() * (log_probs - log_mean)).sum(dim=2)
    return divergences.mean()


class AugMixJsd(Objective):
    """Cross entropy on the shifted and flipped images, and agreement with two mixed forms of each.

    Args:
        options: How images are mixed.
        weight: Of the Jensen-Shannon divergence; λ in the paper.
        label_smoothing: Part of the target that is spread over all classes.
    """

    def __init__(
        self,
        options: AugMixOptions | None = None,
        weight: float = 12.0,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.options = AugMixOptions() if options is None else options
        self.weight = weight
        self.label_smoothing = label_smoothing

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Return cross entropy plus weighted divergence."""
        x = shift_and_flip(x, generator)
        twice = torch.cat([x, x])
        mixed = mix(twice, draw(len(twice), self.options, generator))
        # One pass for all three, so that they are normalised by the same batch statistics.
        logits = model(torch.cat([x.float() / 255, mixed])).float().view(3, len(x), -1)
        loss = F.cross_entropy(logits[0], y, label_smoothing=self.label_smoothing)
        return loss + self.weight * jensen_shannon(logits)
