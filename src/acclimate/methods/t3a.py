from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.forward import Forward
from acclimate.functional.entropy import entropy
from acclimate.functional.precision import at_least_float32
from acclimate.methods.config import Config, changed, choice, hp, options, published
from acclimate.methods.heads import FeatureMethod, linear_head
from acclimate.methods.method import MethodCard


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
        """Make the rows of the head the first supports."""
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
        """Add the batch to the supports, then classify it by them."""
        found = self.run(x)
        self.supports, self.entropies = self._with(found.known_features, found.logits)
        return self._classify(found, self.supports)

    def predict(self, x: Tensor) -> Tensor:
        """Classify as `step` does, and forget the batch."""
        found = self.run(x, moves=False)
        supports, _ = self._with(found.known_features, found.logits)
        return self._classify(found, supports)

    def _with(self, features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return supports and their entropies with these samples among them."""
        supports, entropies = self.supports.clone(), self.entropies.clone()
        # In half precision a vector of zeros cannot be normalised.
        features = F.normalize(at_least_float32(features), dim=1).to(supports.dtype)
        surprise = entropy(logits).to(entropies.dtype)
        labels = logits.argmax(dim=1)
        usable = torch.isfinite(surprise) & torch.isfinite(features).all(dim=1)
        for label in sorted(set(labels[usable].tolist())):
            chosen = usable & (labels == label)
            ranked = torch.cat([entropies[label], surprise[chosen]])
            order = ranked.argsort(stable=True)[: self.config.n_supports]
            entropies[label] = ranked[order]
            supports[label] = torch.cat([supports[label], features[chosen]])[order]
        return supports, entropies

    def _classify(self, found: Forward, supports: Tensor) -> Tensor:
        features = at_least_float32(found.known_features)
        with torch.autocast(features.device.type, enabled=False):
            prototypes = F.normalize(supports.sum(dim=1, dtype=features.dtype), dim=1)
            return (features @ prototypes.T).to(found.logits.dtype)
