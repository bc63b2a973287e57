"""Alignment of features with the source's first two moments, as a term of a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from acclimate.functional.contrast import covariance_distance, feature_moments, mean_distance

#: The moments of a space, and how far they are apart between two blocks of source samples.
MOMENTS = ("mean", "covariance", "mean_distance", "covariance_distance")


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
