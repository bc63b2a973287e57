"""What is minimised on several domains: cross entropy on each, and CORAL's penalty between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.errors import BadInput
from acclimate.forward import get_logits
from acclimate.functional.views import ColorJitter, Crop, Flip, Grayscale, Views
from acclimate.introspect import get_head
from acclimate.training.objectives import Objective

#: The augmentation of DomainBed. It crops the file as it is; here crops are taken from the image
#: after it was brought to its size, which is the same for square images.
VIEWS = Views(
    (Crop(scale=(0.7, 1.0)), Flip(0.5), ColorJitter(0.3, 0.3, 0.3, 0.3), Grayscale(0.1)),
)


def coral_penalty(features: Sequence[Tensor]) -> Tensor:
    """Return how much the features of several domains differ, averaged over all pairs of domains.

    Sun & Saenko, "Deep CORAL", ECCV 2016 workshops, https://arxiv.org/abs/1607.01719, in the form
    of DomainBed: of a pair it is the squared difference of the means, averaged over the features,
    plus the squared difference of the covariances, averaged over all pairs of features. The
    covariances are divided by the number of samples less one.

    Args:
        features: Of each domain, (batch, width); at least two samples each, any number.

    Raises:
        BadInput: There are fewer than two domains, or a domain has fewer than two samples.
    """
    counts = [len(own) for own in features]
    text = (
        "Expected at least two domains with at least two samples each for CORAL, found "
        f"{', '.join(map(str, counts)) or 'none'} samples. Train on more domains, or with larger "
        "batches, or use erm."
    )
    if len(counts) < 2:
        raise BadInput("too_few_domains", text, expected=2, found=len(counts))
    if min(counts) < 2:
        raise BadInput("too_few_samples", text, expected=2, found=min(counts))
    # Sums over squares lose too many digits in 16 bits.
    moments = [_moments(own.float() if own.dtype.itemsize < 4 else own) for own in features]
    pairs = [
        (mean - other_mean).square().mean() + (covariance - other_covariance).square().mean()
        for (mean, covariance), (other_mean, other_covariance) in combinations(moments, 2)
    ]
    return torch.stack(pairs).mean()


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(dim=0)
    centred = x - mean
    return mean, centred.T @ centred / (len(x) - 1)


class DomainObjective(Objective):
    """Cross entropy on minibatches of several domains, each counting the same, and CORAL's penalty.

    Args:
        head: Name of the model's head, whose input are the features.
        gamma: Weight of CORAL's penalty; 0 leaves it out, which is ERM.
        dropout: Probability of dropping a feature before the head.
    """

    def __init__(self, head: str, gamma: float, dropout: float) -> None:
        super().__init__()
        self.head, self._gamma, self._dropout = head, gamma, dropout

    def forward(
        self,
        model: nn.Module,
        images: Sequence[Tensor],
        labels: Sequence[Tensor],
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss, and the penalty in it before it is weighted."""
        sizes = [len(own) for own in images]
        x = VIEWS(torch.cat(list(images)).float() / 255, generator)
        features, logits = self._run(model, x.contiguous(memory_format=torch.channels_last))
        losses = [
            F.cross_entropy(own, y)
            for own, y in zip(logits.float().split_with_sizes(sizes), labels, strict=True)
        ]
        loss = torch.stack(losses).mean()
        if self._gamma == 0:
            return loss, loss.new_zeros(())
        penalty = coral_penalty(features.split_with_sizes(sizes))
        return loss + self._gamma * penalty, penalty.detach()

    def _run(self, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        taken: list[Tensor] = []

        def drop(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            taken.append(F.dropout(inputs[0].flatten(1), self._dropout, self.training))
            return (taken[-1].reshape(inputs[0].shape), *inputs[1:])

        hook = get_head(model, self.head).register_forward_pre_hook(drop)
        try:
            logits = get_logits(model(x))
        finally:
            hook.remove()
        return taken[0], logits
