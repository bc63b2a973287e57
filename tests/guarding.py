"""Artifacts whose maps estimate what a test wants."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from acclimate import Artifact
from acclimate.functional.signals import SIGNALS, TARGETS, AccuracyMap

#: Windows of the only map. An estimate needs about as many images.
SIZE = 32
_SPREAD = 1e-3


def script_map(gain: float, by: Mapping[str, float] | None = None) -> AccuracyMap:
    """Return a map that estimates a gain of almost no error.

    Args:
        gain: Its constant part.
        by: Weights of signals that are added to it.
    """
    n = len(SIGNALS)
    weights = torch.zeros(2, len(TARGETS), 1 + n).double()
    weights[:, 0, 0] = weights[:, 1, 0] = 0.5
    weights[:, 2, 0] = gain
    for name, weight in (by or {}).items():
        weights[:, 2, 1 + SIGNALS.index(name)] = weight
    gate = torch.zeros(1 + n + n * (n + 1) // 2).double()
    gate[0] = -50.0  # the stream is never taken for a correlated one
    variance = torch.zeros(2, len(TARGETS), 2).double()
    variance[..., 0] = _SPREAD**2  # however much the models disagree
    return AccuracyMap(
        size=SIZE,
        centre=torch.zeros(n).double(),
        scale=torch.ones(n).double(),
        gate=gate,
        weights=weights,
        spread=torch.full((len(TARGETS),), _SPREAD).double(),
        variance=variance,
        inverse=torch.zeros(1 + n, 1 + n).double(),
        reach=torch.tensor(1.0).double(),
    )


def script_gain(
    artifact: Artifact, gain: float = 0.0, by: Mapping[str, float] | None = None
) -> Artifact:
    """Return the artifact with the part accuracy of `script_map` instead of its own."""
    kept = {k: v for k, v in artifact.tensors.items() if not k.startswith("accuracy/")}
    made = script_map(gain, by).to_tensors()
    tensors = {f"accuracy/{SIZE}/{name}": tensor for name, tensor in made.items()}
    card = {**artifact.card, "parts": {**artifact.parts, "accuracy": {}}}
    return Artifact({**kept, **tensors}, card)
