from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from acclimate.errors import NotAdapted
from acclimate.functional.entropy import log_probs
from acclimate.functional.pixels import image_losses, to_maps
from acclimate.methods.gradient import GradientMethod


class Supervised(GradientMethod):
    """Minimises the cross entropy with the true labels: an oracle, for evaluations only.

    Figure 1 (d) and table 5 of the paper, which finds 2e-4 the best rate on CIFAR-100-C. Labels
    reach it only through `evaluate(..., reveal_labels=True)`; tables mark it. Of pixels, those
    count whose label is one of the model's classes, each image as much as any other.
    """

    name = "supervised"
    card = GradientMethod.card.variant(
        authors="Choi et al.",
        year=2022,
        paper="https://arxiv.org/abs/2207.11707",
        is_oracle=True,
        dense=True,
    )

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.labels is None:
            raise NotAdapted(
                "labels_needed",
                "supervised is an oracle: it learns from labels, which only an evaluation can show "
                "it. Use acclimate.evaluate(adapted, stream, reveal_labels=True), or adapt with "
                "another method.",
            )
        found = self.run(x)
        logits, y = found.logits, self.labels.to(found.logits.device)
        if found.grid is None:
            return logits, F.nll_loss(log_probs(logits), y)
        counts = (y >= 0) & (y < logits.shape[1])
        if not bool(counts.any()):
            return logits, None
        losses = image_losses(to_maps(logits, found.grid), y.long().where(counts, -1), -1)
        return logits, losses[counts.flatten(1).any(dim=1)].mean()
