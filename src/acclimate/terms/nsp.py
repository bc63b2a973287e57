"""Nearest source prototypes, as a term of a loss."""

from __future__ import annotations

from torch import Tensor, nn

from acclimate.functional.across import batch_mean
from acclimate.functional.entropy import cross_entropy_between, information_maximization
from acclimate.functional.norm import Statistics, use_statistics
from acclimate.functional.prototypes import prototype_logits


class Nsp(nn.Module):
    """Pulls features towards their nearest source prototype (paper, eq. 5 and 7 to 9).

    It sees features only, so its gradient reaches the encoder and never the head.

    Args:
        prototypes: (K, d) in the projector's space.
        projector: From features to that space; its weights are frozen unless a method trains them.
        temperature: τ in the paper.
        confidence: Weight of the mean entropy; λ_a1.
        diversity: Weight of the entropy of the mean; λ_a2.
        consistency: Weight of the cross entropy between the two views; λ_s.
        detach_target: Whether the original view is a fixed target of the transformed one in
            eq. 9. The formula shows no stop-gradient; the figure's caption and the text say that
            the transformed projection is pulled to the target of the original one, which is what
            a fixed target does.
        statistics: BatchNorm statistics inside the projector, `"source"` or `"batch"`. The paper
            says only that it uses batch statistics on test data; the prototypes were made with
            batch statistics too, so the batch's put both on one footing.
    """

    prototypes: Tensor

    def __init__(
        self,
        prototypes: Tensor,
        projector: nn.Module,
        *,
        temperature: float,
        confidence: float,
        diversity: float,
        consistency: float,
        detach_target: bool,
        statistics: Statistics,
    ) -> None:
        super().__init__()
        self.projector = projector
        self.register_buffer("prototypes", prototypes)
        self.temperature = temperature
        self.confidence, self.diversity, self.consistency = confidence, diversity, consistency
        self.detach_target = detach_target
        self.statistics: Statistics = statistics

    def logits(self, features: Tensor) -> Tensor:
        """Classify features by their nearest prototype."""
        with use_statistics(self.projector, self.statistics):
            embeddings = self.projector(features)
        return prototype_logits(embeddings, self.prototypes, self.temperature)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch without its transformed view, and its prototype logits."""
        logits = self.logits(features)
        return information_maximization(logits, self.confidence, self.diversity), logits

    def agreement(self, target: Tensor, view_features: Tensor) -> Tensor:
        """Return the self-supervised part: of the transformed view with the original's logits."""
        target = target.detach() if self.detach_target else target
        between = cross_entropy_between(target, self.logits(view_features))
        return self.consistency * batch_mean(between)
