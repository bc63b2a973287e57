from __future__ import annotations

import torch
from torch import Tensor

from acclimate.export import ExportPlan, refuse_export
from acclimate.forward import Forward
from acclimate.functional.affinity import affinities, corrected_log_probs
from acclimate.functional.entropy import log_probs
from acclimate.methods.config import Config, MethodCard, changed, choice, hp, options, published
from acclimate.methods.heads import FeatureMethod


@options
class LameConfig(Config):
    """Options of `lame`."""

    # It is not for pixels.
    presets = published("cifar10", "cifar100", "imagenet")

    statistics: str = changed(Config, "statistics", "source")
    kernel: str = hp(
        "rbf",
        choices=("rbf", "knn", "linear"),
        search=choice("rbf", "knn", "linear"),
        help="affinity of two samples: Gaussian in their distance, 1 for neighbours, or cosine",
    )
    n_neighbours: int = hp(
        5,
        low=1,
        search=choice(1, 3, 5),
        help="rbf: its width is the mean distance of the n-th neighbour, oneself being the first; "
        "knn: how many others are neighbours",
    )
    max_iterations: int = hp(100, low=1, help="bound on the iterations of a batch")


class Lame(FeatureMethod):
    """Corrects the predictions of a batch so that samples with like features get like labels.

    The authors' code, of which nothing is used here, takes log(p + 1e-10), which bounds how
    unlikely a class can be, and its energy mixes two iterates: it multiplies the affinities with
    the one before. Here neither is done. The difference grows with the batch: for a ResNet-20 on
    CIFAR-10-C the probabilities differ by up to 1e-4 in batches of 50, and by up to 0.35 in one of
    250, though no predicted class does. Keeps nothing between batches; BatchNorm keeps the source's
    statistics. Helps where neighbours in the stream share their label, and hurts where they do not.
    Returns the logarithms of the corrected probabilities.
    """

    name = "lame"
    config_class = LameConfig
    config: LameConfig
    card = MethodCard(
        authors="Boudiaf et al.",
        year=2022,
        paper="https://arxiv.org/abs/2201.05718",
        code="https://github.com/fiveai/LAME",
    )

    def step(self, x: Tensor) -> Tensor:
        return self._corrected(self.run(x))

    def infer(self, x: Tensor) -> Tensor:
        return self._corrected(self.run(x, moves=False))

    def plan_export(self) -> ExportPlan:
        """Refuse: all that the method does is to correct predictions by their neighbours."""
        raise refuse_export(self.name, "it corrects predictions by the other samples of a batch.")

    def _corrected(self, found: Forward) -> Tensor:
        log_p = log_probs(found.logits)
        features = found.known_features.to(log_p.dtype)
        # A sample that overflowed in the model has no neighbours, and must not be one.
        usable = torch.isfinite(features).all(dim=1) & torch.isfinite(log_p).all(dim=1)
        log_y = log_p.clone()
        if bool(usable.any()):
            with torch.autocast(log_p.device.type, enabled=False):
                near = affinities(features[usable], self.config.kernel, self.config.n_neighbours)
                log_y[usable] = corrected_log_probs(log_p[usable], near, self.config.max_iterations)
        dtype = found.logits.dtype
        return log_y.clamp_min(torch.finfo(dtype).min).to(dtype)
