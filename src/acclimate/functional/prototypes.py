"""Nearest source prototypes: moving class means, and the classifier they make."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def move_prototypes(
    prototypes: Tensor, seen: Tensor, embeddings: Tensor, y: Tensor, momentum: float = 0.99
) -> tuple[Tensor, Tensor]:
    """Return prototypes moved by one batch of labelled embeddings (paper, eq. 4).

    Sample by sample, q ← momentum · q + (1 − momentum) · z for the sample's class; the first
    embedding of a class starts its prototype. The samples of one class are summed in closed form,
    with weights momentum^(number of later samples of the class).

    Args:
        prototypes: (K, d), rows of classes not yet seen are ignored.
        seen: (K,) boolean.
        embeddings: (B, d), in the order in which they came.
        y: (B,) class numbers.
        momentum: α in the paper.

    Returns:
        New prototypes and the new `seen`.
    """
    prototypes, seen = prototypes.clone(), seen.clone()
    embeddings = embeddings.to(prototypes.dtype)
    for label in sorted(set(y.tolist())):
        samples = embeddings[y == label]
        if not seen[label]:
            prototypes[label] = samples[0]
            seen[label] = True
            samples = samples[1:]
        n = len(samples)
        ages = torch.arange(n - 1, -1, -1, device=samples.device, dtype=prototypes.dtype)
        weights = (1 - momentum) * momentum**ages
        prototypes[label] = momentum**n * prototypes[label] + weights @ samples
    return prototypes, seen


def prototype_logits(embeddings: Tensor, prototypes: Tensor, temperature: float = 0.1) -> Tensor:
    """Return cosine similarities to all prototypes over the temperature (paper, eq. 5).

    Args:
        embeddings: (B, d).
        prototypes: (K, d).
        temperature: τ in the paper.

    Returns:
        Logits (B, K) of the nearest-prototype classifier; their softmax is ŷ. In at least
        float32: a division by a small temperature magnifies the rounding of half precision.
    """
    if embeddings.dtype in (torch.float16, torch.bfloat16):
        embeddings = embeddings.float()
    with torch.autocast(embeddings.device.type, enabled=False):
        directions = F.normalize(prototypes.to(embeddings.dtype), dim=-1)
        return F.normalize(embeddings, dim=-1) @ directions.T / temperature
