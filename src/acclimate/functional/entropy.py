"""Entropies, cross entropies and other losses of predictions, computed in log space.

All functions take logits, promote half precision to float32, and stay finite (with finite
gradients) for one-hot and for uniform predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from acclimate.functional.across import batch_logsumexp, batch_mean, batch_size
from acclimate.functional.precision import at_least_float32


def log_probs(logits: Tensor) -> Tensor:
    """Return log-softmax over the last dimension, in at least float32.

    Logits that differ by more than the floating-point range would give minus infinity, and then
    0 · ∞ in an entropy; the smallest finite number replaces it.
    """
    result = torch.log_softmax(at_least_float32(logits), dim=-1)
    return result.clamp_min(torch.finfo(result.dtype).min)


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each prediction, natural logarithm: (B, K) → (B,).

    >>> round(entropy(torch.zeros(1, 4)).item(), 4) == round(math.log(4), 4)
    True
    """
    log_p = log_probs(logits)
    return -(log_p.exp() * log_p).sum(dim=-1)


def conservative_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each prediction as an opinion that may be undecided: (B, K) → (B,).

    The opinion has K + 1 masses: exp(z_k) / (S + K) for the classes and K / (S + K) for being
    undecided, with S = Σ exp(z_k). Its entropy is at most log(K + 1). No gradient changes the
    length of the logits, only their direction (COME, https://arxiv.org/abs/2410.10894).

    The opinion is the softmax of the logits and log K, so it does not overflow. The authors add
    1e-7 to the masses inside the logarithm, which is not needed here.

    >>> round(conservative_entropy(torch.zeros(1, 4)).item(), 4)  # half of the mass is undecided
    1.3863
    """
    logits = at_least_float32(logits)
    # Scaled, so that the squares do not overflow. The ratio of lengths is 1; its gradient takes
    # away the part along the logits. Logits of zero have no direction.
    largest = logits.detach().abs().amax(dim=-1, keepdim=True)
    smallest = torch.finfo(logits.dtype).tiny
    scaled = logits / largest.clamp_min(smallest)
    length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True).clamp_min(smallest)
    turned = logits * (length.detach() / length)
    undecided = torch.full_like(largest, math.log(logits.shape[-1]))
    return entropy(torch.cat([turned, undecided], dim=-1))


#: Entropies of single predictions by name: (B, K) → (B,).
ENTROPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": entropy,
    "come": conservative_entropy,
}


def entropy_of_mean(logits: Tensor) -> Tensor:
    """Return the entropy of the batch-mean prediction: (B, K) → ().

    >>> round(entropy_of_mean(torch.tensor([[99.0, 0.0], [0.0, 99.0]])).item(), 4)
    0.6931
    """
    log_p = log_probs(logits)
    log_mean = batch_logsumexp(log_p) - math.log(batch_size(log_p))
    log_mean = log_mean.clamp_min(torch.finfo(log_mean.dtype).min)
    return -(log_mean.exp() * log_mean).sum()


def information_maximization(logits: Tensor, confidence: float, diversity: float) -> Tensor:
    """Return `confidence` · mean entropy − `diversity` · entropy of the mean (paper, eq. 3 and 8).

    Minimising it makes single predictions confident and their average over the batch uniform.
    """
    return confidence * batch_mean(entropy(logits)) - diversity * entropy_of_mean(logits)


def cross_entropy_between(target_logits: Tensor, logits: Tensor) -> Tensor:
    """Return the cross entropy of each prediction against a soft target: (B, K), (B, K) → (B,).

    Gradients flow through the target, too; detach it to stop them (paper, eq. 9).
    """
    return -(log_probs(target_logits).exp() * log_probs(logits)).sum(dim=-1)


def correlation_loss(
    logits: Tensor, *, balanced: bool = False, temperature: float = 1.0, weighted: bool = False
) -> Tensor:
    """Return how much different classes are predicted together in a batch: (B, K) → ().

    With P the probabilities (B, K) and R = Pᵀ W P, it is the mass of R off its diagonal over B; if
    balanced, each row of R is divided by its sum first, and the mass by K.

    >>> round(correlation_loss(torch.zeros(3, 4)).item(), 4)  # all of 1 − Σ p²
    0.75
    """
    log_p = log_probs(logits / temperature)
    p = log_p.exp()
    weights = torch.ones_like(p[:, 0])
    if weighted:
        weights = 1 + (-entropy(log_p.detach())).exp()
        weights = weights * len(weights) / weights.sum()
    together = (p * weights.unsqueeze(1)).T @ p
    if not balanced:
        return (together.sum() - together.trace()) / len(p)
    # A class that is never predicted has a row of zeros, which adds nothing whatever divides it.
    smallest = torch.finfo(p.dtype).tiny ** 0.5
    together = together / together.sum(dim=1, keepdim=True).clamp_min(smallest)
    return (together.sum() - together.trace()) / p.shape[1]


def soft_likelihood_ratio(logits: Tensor, clip: float = 0.99) -> Tensor:
    """Return −Σ p log(p / (1 − p)) of each prediction, with p no larger than `clip`.

    Unlike the entropy it has a gradient where the prediction is sure, up to the clip.
    """
    probs = log_probs(logits).exp().clamp_max(clip)
    return -(probs * torch.log(probs / (1 - probs) + 1e-5)).sum(dim=1)
