"""Affinities of samples, and predictions that are alike for samples with like features (LAME)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.functional.entropy import log_probs


def affinities(features: Tensor, kernel: str = "rbf", n_neighbours: int = 5) -> Tensor:
    """Return the affinity of each pair of samples in a batch: (B, d) → (B, B).

    >>> affinities(torch.eye(2), "linear").tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    directions = F.normalize(features, dim=1)
    if kernel == "linear":
        return directions @ directions.T
    # Plain differences: by way of a matrix product a sample is not at distance zero from itself.
    mode = "donot_use_mm_for_euclid_dist"
    distances = torch.cdist(directions, directions, compute_mode=mode)
    n = len(features)
    if kernel == "knn":
        others = distances.fill_diagonal_(torch.inf)
        nearest = others.topk(min(n_neighbours, n - 1), dim=1, largest=False).indices
        return torch.zeros_like(distances).scatter_(1, nearest, 1.0)
    width = distances.topk(min(n_neighbours, n), dim=1, largest=False).values[:, -1].mean()
    # Zero if all features are equal, or there is one only: then equal ones have affinity one.
    width = width.clamp_min(torch.finfo(width.dtype).eps)
    return (-((distances / width) ** 2) / 2).exp()


def corrected_log_probs(
    log_p: Tensor, affinity: Tensor, max_iterations: int = 100, tolerance: float = 1e-8
) -> Tensor:
    """Return assignments near the predictions and alike for samples alike, as logarithms.

    They lower the energy Σ y log(y/p) − Σ_ij w_ij y_i·y_j by the updates
    y_i ← softmax(log p_i + Σ_j w_ij y_j), until it changes by less than the tolerance.
    """
    log_y, before = log_p, torch.inf
    for _ in range(max_iterations):
        log_y = log_probs(log_p + affinity @ log_y.exp())
        y = log_y.exp()
        energy = float((y * (log_y - log_p)).sum() - (y * (affinity @ y)).sum())
        if abs(energy - before) <= tolerance * abs(before) < torch.inf:
            break
        before = energy
    return log_y
