"""CORAL: features of all domains are to have the same mean and the same covariance.

Sun & Saenko, "Deep CORAL", ECCV 2016 workshops, https://arxiv.org/abs/1607.01719, in the form of
DomainBed, which adds the means to the covariances.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from acclimate.errors import BadInput


def coral_penalty(features: Sequence[Tensor]) -> Tensor:
    """Return how much the features of several domains differ, averaged over all pairs of domains.

    Of a pair it is the squared difference of the means, averaged over the features, plus the
    squared difference of the covariances, averaged over all pairs of features. The covariances are
    divided by the number of samples less one.

    Args:
        features: Of each domain, (batch, width); at least two samples each, any number.

    Raises:
        BadInput: There are fewer than two domains, or a domain has fewer than two samples.
    """
    counts = [len(own) for own in features]
    if len(counts) < 2 or min(counts) < 2:
        text = (
            "Expected at least two domains with at least two samples each for CORAL, found "
            f"{', '.join(map(str, counts)) or 'none'} samples. Train on more domains, or with "
            "larger batches, or use erm."
        )
        if len(counts) < 2:
            raise BadInput("too_few_domains", text, expected=2, found=len(counts))
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
