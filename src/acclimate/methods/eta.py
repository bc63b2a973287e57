from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.functional.entropy import log_probs
from acclimate.methods.config import EntropyConfig, hp, options, published, uniform
from acclimate.methods.tent import Tent
from acclimate.schema import Maybe, TensorOf


@options
class EtaConfig(EntropyConfig):
    """Options of `eta`; the defaults are those published for CIFAR-10 at batches of 200."""

    presets = published(
        "cifar10",
        cifar100={"max_similarity": 0.1},
        imagenet={"optimizer": "sgd", "lr": 2.5e-4, "max_similarity": 0.05},
    )

    max_entropy: float = hp(
        0.4,
        low=0.0,
        search=uniform(0.2, 0.6),
        help="learn from predictions whose entropy is under this share of log K (E_0)",
    )
    max_similarity: float = hp(
        0.4,
        low=0.0,
        search=uniform(0.05, 0.6),
        help="learn from predictions whose cosine similarity with the moving mean prediction is "
        "under this (ε); over 1: from all",
    )
    mean_decay: float = hp(0.9, low=0.0, high=1.0, help="of the moving mean prediction, per batch")


class Eta(Tent):
    """Minimises the weighted entropy of predictions that are sure, and unlike the usual one.

    EATA without its regulariser. A sample is learned from if its entropy is low, and if its
    prediction has a small cosine with the moving mean of what was learned from before; the first
    batch has no such mean, and skips that test. Surer predictions weigh more. `reset()` forgets the
    mean, which the authors' code keeps. A batch without such a sample is predicted, and changes
    nothing. The authors' code takes BatchNorm2d only.
    """

    name = "eta"
    config_class = EtaConfig
    config: EtaConfig
    card = Tent.card.variant(
        authors="Niu et al.",
        year=2022,
        paper="https://arxiv.org/abs/2204.02610",
        code="https://github.com/mr-eggplant/EATA",
    )

    mean_prediction: Tensor | None

    def setup(self) -> None:
        super().setup()
        self.add_state("mean_prediction", None, Maybe(TensorOf(("classes",), low=0)))

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = self.run(x).logits
        each = self.config.entropy_of(logits)
        limit = self.config.max_entropy * math.log(logits.shape[1])
        chosen = self._choose(logits.detach(), each.detach() < limit)
        if not bool(chosen.any()):
            return logits, None
        weighted = (limit - each.detach()).exp() * each
        return logits, weighted[chosen].mean()

    @torch.no_grad()
    def _choose(self, logits: Tensor, reliable: Tensor) -> Tensor:
        """Return which samples to learn from, and move the mean prediction towards theirs."""
        probs = log_probs(logits).exp()
        if self.mean_prediction is None:
            chosen, mean = reliable, None
        else:
            mean = self.mean_prediction.to(probs)
            similarity = F.cosine_similarity(probs, mean[None], dim=1).abs()
            chosen = reliable & (similarity < self.config.max_similarity)
        if bool(chosen.any()):
            new = probs[chosen].mean(dim=0)
            decay = self.config.mean_decay
            self.mean_prediction = new if mean is None else decay * mean + (1 - decay) * new
        return chosen
