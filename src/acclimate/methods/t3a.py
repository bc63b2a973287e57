from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.export import ExportPlan, refuse_export
from acclimate.functional.centroids import add_supports, support_logits
from acclimate.introspect import linear_head
from acclimate.methods.config import Config, MethodCard, changed, choice, hp, options, published
from acclimate.methods.heads import FeatureMethod


@options
class T3aConfig(Config):
    """Options of `t3a`."""

    # It is not for pixels.
    presets = published("cifar10", "cifar100", "imagenet")

    statistics: str = changed(Config, "statistics", "source")
    n_supports: int = hp(
        100,
        low=1,
        search=choice(1, 5, 20, 50, 100),
        help="features kept for each class, those of the surest predictions (M)",
    )


class T3a(FeatureMethod):
    """Classifies by class prototypes made of the stream's own surest features.

    Starts with the rows of the linear head as supports; each sample then becomes a support of the
    class that the head predicts, and each class keeps those of lowest entropy. BatchNorm keeps the
    source's statistics, as in the authors' code. Their "keep all" (M = −1) drops a support at each
    call and lets the memory grow; here the number is always bounded: classes × supports × width
    values are kept, 0.8 GB for ImageNet's 1000 classes, 100 supports and 2048 features. Returns
    products of features and prototypes, the batch's own features counted in; their softmax is no
    probability to rely on.
    """

    name = "t3a"
    config_class = T3aConfig
    config: T3aConfig
    card = MethodCard(
        authors="Iwasawa & Matsuo",
        year=2021,
        paper="https://openreview.net/forum?id=e_yvNqkJKAW",
        code="https://github.com/matsuolab/T3A",
    )

    supports: Tensor
    entropies: Tensor

    def setup(self) -> None:
        super().setup()
        head = linear_head(self.model, str(self.head), self.name)
        rows = head.weight.detach()
        n_classes, width = rows.shape
        # Empty places have an infinite entropy, and the feature zero, which adds nothing.
        self.add_state("supports", rows.new_zeros(n_classes, self.config.n_supports, width))
        self.add_state("entropies", rows.new_full((n_classes, self.config.n_supports), torch.inf))
        bias = None if head.bias is None else head.bias.detach()
        logits = F.linear(rows, rows, bias)
        self.supports, self.entropies = self._with(rows, logits)

    def step(self, x: Tensor) -> Tensor:
        found = self.run(x)
        self.supports, self.entropies = self._with(found.known_features, found.logits)
        return support_logits(found.known_features, self.supports).to(found.logits.dtype)

    def infer(self, x: Tensor) -> Tensor:
        found = self.run(x, moves=False)
        supports, _ = self._with(found.known_features, found.logits)
        return support_logits(found.known_features, supports).to(found.logits.dtype)

    def plan_export(self) -> ExportPlan:
        """Refuse: predictions come from prototypes that every batch changes."""
        raise refuse_export(self.name, "it predicts with prototypes that every batch changes.")

    def _with(self, features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        return add_supports(self.supports, self.entropies, features, logits)
