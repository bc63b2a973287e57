from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from acclimate.export import ExportPlan
from acclimate.functional.augmentations import CottaAugmentation, augment
from acclimate.functional.entropy import (
    cross_entropy_between,
    entropy,
    log_probs,
    soft_likelihood_ratio,
)
from acclimate.functional.inputs import check_images
from acclimate.methods.config import GradientConfig, hp, options, published, uniform
from acclimate.methods.gradient import NormLayersMethod
from acclimate.schema import Maybe, TensorOf


@options
class RoidConfig(GradientConfig):
    """Options of `roid`; the defaults are the authors'."""

    presets = published(
        "cifar10", "cifar100", imagenet={"optimizer": "sgd", "lr": 2.5e-4, "nesterov": True}
    )

    temperature: float = hp(1 / 3, low=1e-4, help="of the weights of samples (τ)")
    probs_decay: float = hp(0.9, low=0.0, high=1.0, help="of the mean prediction (β)")
    clip: float = hp(0.99, low=0.5, high=0.999999, help="probabilities over it give no gradient")
    consistency: float = hp(
        1.0, low=0.0, search=uniform(0.0, 2.0), help="weight of the term with the augmented view"
    )
    source_share: float = hp(
        0.01, low=0.0, high=1.0, help="of the source's weights, mixed in after each update (1 − α)"
    )
    prior_correction: bool = hp(
        True, help="multiply the logits by the smoothed mean prediction of the batch"
    )
    draws_per_image: bool = hp(False, help="augment every image by itself, not the batch as one")


class Roid(NormLayersMethod):
    """Weighs samples by certainty and diversity, and mixes the source's weights back in.

    Learns a soft likelihood ratio and agreement with an augmented view, on the samples that differ
    from what was predicted lately. Their view is a batch of its own, with its own statistics; the
    term is left out where it would have to be a single image under batch statistics. Where all
    samples of a batch agree, their weights are 1; the authors' code divides by zero. Both losses
    are divided by the number of samples in the batch, not by a configured one. The logits are
    returned times the smoothed mean prediction of the batch: as in the authors' code it is the
    logits that are multiplied, so that their ranking has a meaning, but their softmax has none as a
    probability.
    """

    name = "roid"
    config_class = RoidConfig
    config: RoidConfig
    card = NormLayersMethod.card.variant(
        authors="Marsden et al.",
        year=2024,
        paper="https://arxiv.org/abs/2306.00650",
        code="https://github.com/mariodoebler/test-time-adaptation",
        forwards=2,
    )

    mean_probs: Tensor | None

    def setup(self) -> None:
        super().setup()
        self.add_state("mean_probs", None, Maybe(TensorOf(("classes",), low=0)))
        self._augmentation = CottaAugmentation(
            padding="reflect", blur=False, noise=0.0, per_image=self.config.draws_per_image
        )

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_images(x, self.normalization)
        logits = self.run(x).logits
        weights = self._weigh(logits.detach())
        loss = (soft_likelihood_ratio(logits, self.config.clip) * weights).sum()
        chosen = weights > 0
        part = x[chosen]
        if self.config.consistency > 0 and not self.is_single(part):
            view = augment(self._augmentation, part, self.normalization, self.generator)
            other, own = self.run(view, moves=False).logits, logits[chosen]
            both = cross_entropy_between(own, other) + cross_entropy_between(other, own)
            loss = loss + self.config.consistency * (both / 2 * weights[chosen]).sum()
        return self._correct(logits.detach()), loss / len(x)

    def infer(self, x: Tensor) -> Tensor:
        """Predict one batch, with the same correction, and learn nothing."""
        return self._correct(self.run(x, moves=False).logits)

    def plan_export(self) -> ExportPlan:
        """Leave out the correction of the prior."""
        lost = ("Predictions are corrected by the classes of the whole batch.",)
        return replace(super().plan_export(), lost=lost)

    def after_update(self, x: Tensor) -> None:
        source = self.initial()["modules"]
        for name, parameter in self.trainable(self.model, self.config).items():
            parameter.lerp_(source[f"model.{name}"].to(parameter), self.config.source_share)

    @torch.no_grad()
    def _weigh(self, logits: Tensor) -> Tensor:
        """Return the weight of each sample, and take the batch into the mean prediction."""
        probs = log_probs(logits).exp()
        mean = self.mean_probs
        if mean is None:
            mean = torch.full_like(probs[0], 1 / probs.shape[1])
        diversity = _to_unit_range(1 - torch.cosine_similarity(probs, mean[None].to(probs), dim=1))
        certainty = _to_unit_range(-entropy(logits))
        weights = torch.exp(diversity * certainty / self.config.temperature)
        moved = torch.lerp(probs.mean(dim=0), mean.to(probs), self.config.probs_decay)
        if bool(moved.isfinite().all()):
            self.mean_probs = moved
        return weights.masked_fill(diversity < diversity.mean(), 0.0)

    def _correct(self, logits: Tensor) -> Tensor:
        if not self.config.prior_correction:
            return logits
        self.plain_logits = logits.detach()
        n, n_classes = logits.shape
        prior = log_probs(logits).exp().mean(dim=0)
        smooth = max(1 / n, 1 / n_classes) / prior.max()
        return logits * ((prior + smooth) / (1 + smooth * n_classes)).to(logits.dtype)


def _to_unit_range(values: Tensor) -> Tensor:
    """Return the values scaled from 0 to 1; zeros if all are the same."""
    low, high = values.aminmax()
    # Not a number stays what it is, so that the update is found out.
    return torch.where(high > low, (values - low) / (high - low), values - low)
