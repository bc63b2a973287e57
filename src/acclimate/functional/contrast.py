"""Contrast between two views, and distances between the first two moments of features.

Both are computed in at least float32, independently of the precision of the features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def contrastive_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return NT-Xent, the loss of SimCLR: (B, d), (B, d) → ().

    Each of the 2·B rows has to distinguish its partner, the other view of its image, from all other
    rows, by cosine similarities divided by the temperature. The loss of a single pair is zero.

    Args:
        first: Projections of one view of each image; their norm does not matter.
        second: Projections of the other view, in the same order.
        temperature: T in the paper.

    >>> views = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> round(contrastive_loss(views, views, 1.0).item(), 4)  # log(1 + 2 / e)
    0.5514
    """
    both = F.normalize(_precise(torch.cat([first, second])), dim=1)
    n = len(first)
    with torch.autocast(both.device.type, enabled=False):
        similarities = both @ both.T / temperature
    rows = torch.arange(2 * n, device=both.device)
    # A row is not a candidate for its own partner.
    similarities = similarities.masked_fill(rows[:, None] == rows, -torch.inf)
    return F.cross_entropy(similarities, (rows + n) % (2 * n))


def feature_moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean (d,) and covariance (d, d) of features (n, d).

    The covariance is unbiased; that of a single sample is zero.
    """
    features = _precise(features)
    mean = features.mean(dim=0)
    centred = features - mean
    with torch.autocast(features.device.type, enabled=False):
        return mean, centred.T @ centred / max(len(features) - 1, 1)


def covariance_distance(first: Tensor, second: Tensor) -> Tensor:
    """Return the squared Frobenius distance of two covariances, divided by 4·d² (CORAL)."""
    return (first - second).pow(2).mean() / 4


def mean_distance(first: Tensor, second: Tensor) -> Tensor:
    """Return the mean squared difference of two means."""
    return (first - second).pow(2).mean()


def _precise(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
