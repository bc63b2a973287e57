from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.functional.centroids import pseudo_labels
from acclimate.functional.entropy import information_maximization, log_probs
from acclimate.introspect import get_head
from acclimate.methods.config import (
    GradientConfig,
    MethodCard,
    changed,
    choice,
    hp,
    log_uniform,
    options,
    published,
)
from acclimate.methods.gradient import GradientMethod
from acclimate.methods.heads import FeatureMethod
from acclimate.schema import EmptyOr, Fields, TensorOf


@options
class ShotConfig(GradientConfig):
    """Options of `shot`; the defaults are those of the TTT++ framework on CIFAR."""

    # The framework has a script for CIFAR-10 only; Choi et al. take its defaults for both.
    presets = published("cifar10", "cifar100")

    optimizer: str = changed(GradientConfig, "optimizer", "sgd")
    confidence: float = hp(1.0, low=0.0, help="weight of the mean entropy")
    diversity: float = hp(1.0, low=0.0, help="weight of the entropy of the mean")
    pseudo_weight: float = hp(
        0.001,
        low=0.0,
        search=log_uniform(1e-3, 0.3),
        help="weight of the cross entropy with pseudo-labels (0.3 in the offline original)",
    )
    pseudo_labels: str = hp(
        "batch",
        choices=("batch", "queue", "none"),
        search=choice("batch", "queue", "none"),
        help="their centroids are of the batch, or of the last samples too; none: SHOT-IM",
    )
    queue_size: int = hp(1024, low=1, help="samples that a queue keeps")


class Shot(FeatureMethod, GradientMethod):
    """Trains the encoder towards sure and evenly spread predictions of the frozen classifier.

    The original is offline, and makes pseudo-labels of the whole target set once an epoch. Online
    they come from centroids of the current batch, or of a queue of the last samples; the framework
    of TTT++, whose rates and weights are taken here, reshuffles between labelling and training, so
    that its labels belong to other images, which is not repeated. Plain entropies take the place of
    logarithms with an epsilon. `pseudo_labels="none"` is SHOT-IM.
    """

    name = "shot"
    config_class = ShotConfig
    config: ShotConfig
    card = MethodCard(
        authors="Liang et al.",
        year=2020,
        paper="https://arxiv.org/abs/2002.08546",
        code="https://github.com/tim-learn/SHOT",
        moves="all parameters but the head's",
        backwards=1,
        reconstruction="how pseudo-labels are made online is not published",
    )

    queue: dict[str, Tensor]

    def setup(self) -> None:
        super().setup()
        size = self.config.queue_size
        rows = {"directions": TensorOf((size, "width")), "p": TensorOf((size, "classes"), low=0)}
        self.add_state("queue", {}, EmptyOr(Fields(rows)))

    def trained(self) -> Mapping[str, nn.Parameter]:
        frozen = {id(p) for p in get_head(self.model, self.info.known_head).parameters()}
        return {name: p for name, p in super().trained().items() if id(p) not in frozen}

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        config, found = self.config, self.run(x)
        logits = found.logits
        loss = information_maximization(logits, config.confidence, config.diversity)
        if config.pseudo_labels != "none":
            log_p = log_probs(logits)
            labels = self._label(found.known_features.detach().to(log_p.dtype), log_p.detach())
            loss = loss + config.pseudo_weight * F.nll_loss(log_p, labels)
        return logits, loss

    def _label(self, features: Tensor, log_p: Tensor) -> Tensor:
        directions = F.normalize(F.pad(features, (0, 1), value=1.0), dim=1)
        p, n = log_p.exp(), len(log_p)
        if self.config.pseudo_labels == "batch":
            return pseudo_labels(directions, p, n)
        # A sample that overflowed in the model would spoil the centroids of batches to come.
        usable = torch.isfinite(directions).all(dim=1) & torch.isfinite(p).all(dim=1)
        new = {"directions": directions, "p": p}
        new = {name: t.masked_fill(~usable.unsqueeze(1), 0.0) for name, t in new.items()}
        # A queue is full from the start, of samples that are none: its size never changes.
        size = self.config.queue_size
        old = self.queue or {name: t.new_zeros(size, t.shape[1]) for name, t in new.items()}
        both = {name: torch.cat([old[name].to(t.dtype), t]) for name, t in new.items()}
        self.queue = {name: t[-size:].clone() for name, t in both.items()}
        return pseudo_labels(both["directions"], both["p"], n)
