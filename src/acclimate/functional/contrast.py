"""Contrast between two views, and distances between the first two moments of features.

Both are computed in at least float32, independently of the precision of the features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.functional.precision import at_least_float32

#: The moments of a space, and how far they are apart between two blocks of source samples.
MOMENTS = ("mean", "covariance", "mean_distance", "covariance_distance")


def contrastive_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return NT-Xent, the loss of SimCLR: (B, d), (B, d) → ().

    Each of the 2·B rows has to distinguish its partner, the other view of its image, from all other
    rows, by cosine similarities divided by the temperature. The loss of a single pair is zero.

    >>> views = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> round(contrastive_loss(views, views, 1.0).item(), 4)  # log(1 + 2 / e)
    0.5514
    """
    both = F.normalize(at_least_float32(torch.cat([first, second])), dim=1)
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
    features = at_least_float32(features)
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


class Alignment(nn.Module):
    """Pulls mean and covariance of features to those of the source, in one space or in two.

    A distance is measured in units of what it is between blocks of source samples, so that one
    scale suits any model.

    Args:
        moments: Of each space, the tensors `<space>_<moment>` with the moments of `MOMENTS`; the
            spaces are `encoder` and, if there is a head, `head`.
        head: From features to the second space; frozen. None for the first alone.
        scales: Weight of each space.
        mean_weight: Weight of the distance of means beside that of covariances.
    """

    def __init__(
        self,
        moments: Mapping[str, Tensor],
        head: nn.Module | None,
        scales: Sequence[float],
        mean_weight: float,
    ) -> None:
        super().__init__()
        self.head = head
        self.scales = dict(zip(("encoder", "head"), scales, strict=True))
        self.mean_weight = mean_weight
        for name in (f"{space}_{moment}" for space in self.scales for moment in MOMENTS):
            if name in moments:
                self.register_buffer(name, moments[name].clone())

    def forward(self, features: Tensor) -> Tensor:
        """Return the loss of features (n, d), whose rows may in part carry no gradient."""
        loss = self.distance("encoder", features) * self.scales["encoder"]
        if self.head is not None and self.scales["head"]:
            loss = loss + self.distance("head", self.head(features)) * self.scales["head"]
        return loss

    def distance(self, space: str, features: Tensor) -> Tensor:
        """Return how far features are from the source in a space."""
        mean, covariance = feature_moments(features)
        own = {name: self.get_buffer(f"{space}_{name}") for name in MOMENTS}
        of_covariance = covariance_distance(own["covariance"], covariance)
        of_mean = mean_distance(own["mean"], mean)
        return (
            of_covariance / own["covariance_distance"]
            + self.mean_weight * of_mean / own["mean_distance"]
        )
