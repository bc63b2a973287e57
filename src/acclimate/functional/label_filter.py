"""Labels of a correlated stream: predictions corrected by those before and after them.

In a video, or a stream sorted by class, an image probably has the label of the one before. The
labels are a Markov chain: with probability `stay` a label is repeated, otherwise it is drawn anew
from the mean prediction of the stream. Predictions are the evidence; what the images of a batch
show later also counts (forward and backward pass of a hidden Markov model).

`stay` is estimated from the predictions alone, by an online step of expectation maximisation with
each image. It goes to zero if equal neighbours are not more frequent than by chance; then nothing
is corrected. The mean prediction is divided out, so that a model that prefers some classes is not
taken for a correlated stream. Images whose labels are repeated count less in it.

The state is a dictionary: `stay`; `last`, the probabilities of the last label (K); `mean`, the mean
prediction (K), and `n`, the number of images that it counts as.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.functional.entropy import log_probs

_FIRST_STAY = 0.01
#: `stay` always can rise again, and never excludes a change.
_LOWEST, _HIGHEST = 0.002, 0.99
#: Images over which `stay` is averaged.
_STAY_MEMORY = 100.0
#: Images over which the mean prediction is averaged; the even one at the start counts as 500.
_MEAN_MEMORY, _MEAN_START = 2000.0, 500.0
#: By so much an image counts less in that mean if its label repeats the one before. Otherwise a
#: thousand images of one class would make the model seem to prefer that class.
_REPEATS = 0.9
#: A class has at least this share of its even probability in the mean prediction.
_FLOOR = 0.1
_SMALLEST = 1e-6


def filter_labels(logits: Tensor, state: Mapping[str, Any] | None) -> tuple[Tensor, dict[str, Any]]:
    """Return corrected log probabilities (B, K) of images in the order of the stream, and the state
    after them.

    Args:
        logits: Predictions (B, K).
        state: State after the images before; None at the start.
    """
    probs = log_probs(logits.detach()).exp().double().cpu().numpy()
    probs = np.maximum(probs, _SMALLEST)
    probs /= probs.sum(axis=1, keepdims=True)
    n_classes = probs.shape[1]
    even = np.full(n_classes, 1 / n_classes)
    if state is None:
        stay, last, mean, n = _FIRST_STAY, even, even, _MEAN_START
    else:
        last, mean = (state[key].double().cpu().numpy() for key in ("last", "mean"))
        stay, n = state["stay"], state["n"]
    found, priors, stays, means = [], [], [], []
    for p in probs:
        floor = np.maximum(mean, _FLOOR / n_classes)
        evidence = p / floor
        prior = (1 - stay) * floor / floor.sum() + stay * last
        whole = prior * evidence
        repeated = stay * float(last @ evidence) / float(whole.sum())
        last = whole / whole.sum()
        found.append(last)
        priors.append(prior)
        stays.append(stay)
        means.append(floor / floor.sum())
        stay = min(max(stay + (repeated - stay) / _STAY_MEMORY, _LOWEST), _HIGHEST)
        anew = 1 - _REPEATS * stay
        n = min(n + anew, _MEAN_MEMORY)
        mean = mean + (p - mean) * anew / n
    smooth = [found[-1]]
    for place in range(len(found) - 2, -1, -1):
        ratio = smooth[-1] / np.maximum(priors[place + 1], _SMALLEST**2)
        anew = (1 - stays[place + 1]) * float(means[place + 1] @ ratio)
        whole = found[place] * (anew + stays[place + 1] * ratio)
        smooth.append(whole / whole.sum())
    corrected = torch.from_numpy(np.log(np.maximum(np.stack(smooth[::-1]), _SMALLEST**2)))
    new = {
        "stay": float(stay),
        "last": torch.from_numpy(last).to(logits.device, torch.float32),
        "mean": torch.from_numpy(mean).to(logits.device, torch.float32),
        "n": float(n),
    }
    return corrected.to(logits.device, logits.dtype), new
