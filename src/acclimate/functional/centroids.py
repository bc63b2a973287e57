"""Classes that are represented by features of test samples: centroids (SHOT) and supports (T3A)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.functional.entropy import entropy
from acclimate.functional.precision import at_least_float32


def pseudo_labels(directions: Tensor, p: Tensor, n_last: int) -> Tensor:
    """Return labels by the nearest class centroid, found twice, of the last samples.

    Features (N, d) have length one. A sample whose probabilities (N, K) are all zero is left out.
    """
    takes_part = (p.sum(dim=1, keepdim=True) > 0).to(p.dtype)
    weights = p
    for _ in range(2):
        centroids = weights.T @ directions
        closeness = directions @ F.normalize(centroids, dim=1).T
        # A class without members has no centroid to be near to.
        closeness = closeness.masked_fill(weights.sum(dim=0) == 0, -torch.inf)
        labels = closeness.argmax(dim=1)
        weights = F.one_hot(labels, p.shape[1]).to(p.dtype) * takes_part
    return labels[-n_last:]


def add_supports(
    supports: Tensor, entropies: Tensor, features: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the supports of all classes, and their entropies, after adding samples.

    A sample belongs to its predicted class. Each class keeps the samples with the lowest entropies.
    Samples that are not finite are not added. Supports (K, M, d) have length one. In empty places
    they are zero, and their entropies (K, M) infinite.
    """
    supports, entropies = supports.clone(), entropies.clone()
    # In half precision a vector of zeros cannot be normalised.
    features = F.normalize(at_least_float32(features), dim=1).to(supports.dtype)
    surprise = entropy(logits).to(entropies.dtype)
    labels = logits.argmax(dim=1)
    usable = torch.isfinite(surprise) & torch.isfinite(features).all(dim=1)
    for label in sorted(set(labels[usable].tolist())):
        chosen = usable & (labels == label)
        ranked = torch.cat([entropies[label], surprise[chosen]])
        order = ranked.argsort(stable=True)[: entropies.shape[1]]
        entropies[label] = ranked[order]
        supports[label] = torch.cat([supports[label], features[chosen]])[order]
    return supports, entropies


def support_logits(features: Tensor, supports: Tensor) -> Tensor:
    """Return the products of features (B, d) with the mean direction of each class's supports."""
    features = at_least_float32(features)
    with torch.autocast(features.device.type, enabled=False):
        prototypes = F.normalize(supports.sum(dim=1, dtype=features.dtype), dim=1)
        return features @ prototypes.T
