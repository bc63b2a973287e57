"""Published estimators of accuracy that need no labels of the stream.

All but AETTA are calibrated on labelled source images; AETTA needs passes with dropout instead. All
functions return accuracies as scalars in double precision.

None of them compares two models on the same images, as `acclimate.functional.signals` does. Those
that rest on confidence take a collapsed model for a perfect one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acclimate.functional.entropy import entropy, entropy_of_mean, log_probs


def confidences(logits: Tensor) -> Tensor:
    """Return the largest probability of each prediction: (B, K) → (B,)."""
    return log_probs(logits).amax(dim=-1).exp()


def negative_entropies(logits: Tensor) -> Tensor:
    """Return minus the entropy of each prediction: (B, K) → (B,). Higher is surer."""
    return -entropy(logits)


def average_confidence(confidence: Tensor) -> Tensor:
    """Return the mean confidence, the accuracy of a calibrated model (AC).

    Hendrycks & Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in
    Neural Networks", ICLR 2017, https://arxiv.org/abs/1610.02136.
    """
    return confidence.double().mean()


def difference_of_confidences(
    confidence: Tensor, source_confidence: Tensor, source_is_correct: Tensor
) -> Tensor:
    """Return the source accuracy less the loss of mean confidence (DoC), cut to [0, 1].

    Guillory et al., "Predicting with Confidence on Unseen Distributions", ICCV 2021,
    https://arxiv.org/abs/2107.03315.

    Args:
        confidence: Confidences on the stream.
        source_confidence: Confidences on labelled source images.
        source_is_correct: Whether each of these is predicted correctly.
    """
    change = confidence.double().mean() - source_confidence.double().mean()
    return (source_is_correct.double().mean() + change).clamp(0.0, 1.0)


def find_threshold(source_score: Tensor, source_is_correct: Tensor) -> Tensor:
    """Return the threshold of ATC: the share of source scores below it is the source error.

    Equal scores cannot be separated. Then the share below is the nearest that is possible, and of
    two at the same distance the smaller one. Of all thresholds with the same share below, the
    largest is returned: a source score, or infinity if all source images are predicted wrongly.

    Args:
        source_score: A score of each labelled source image; higher is surer.
        source_is_correct: Whether each of these is predicted correctly.
    """
    values, counts = torch.unique(source_score.double(), sorted=True, return_counts=True)
    n_below = torch.cat([counts.new_zeros(1), counts.cumsum(dim=0)])
    n_wrong = (source_is_correct == 0).sum()
    candidates = torch.cat([values, values.new_full((1,), torch.inf)])
    distances = (n_below - n_wrong).abs()
    place = int((distances == distances.min()).nonzero()[0])
    return candidates[place]


def accuracy_above(score: Tensor, threshold: Tensor | float) -> Tensor:
    """Return the share of scores that reach the threshold: average thresholded confidence (ATC).

    Garg et al., "Leveraging Unlabeled Data to Predict Out-of-Distribution Performance", ICLR 2022,
    https://arxiv.org/abs/2201.04234. The score is a confidence or a negative entropy.
    """
    return (score.double() >= threshold).double().mean()


def dropout_accuracy(predicted: Tensor, dropout_logits: Tensor, power: float = 3.0) -> Tensor:
    """Return the accuracy of a batch by disagreement with passes under dropout (AETTA).

    Lee et al., "AETTA: Label-Free Accuracy Estimation for Test-Time Adaptation", CVPR 2024,
    https://arxiv.org/abs/2404.01351. The error is e / b^`power`, cut to [0, 1 − 1/K], where e is
    the share of predictions under dropout that differ from the prediction without it, and b is the
    entropy of the mean prediction under dropout, divided by log K. A collapsed model has a small b,
    hence a large error. If b is 0, the error is that of chance, 1 − 1/K, whatever e is.

    Args:
        predicted: Predicted classes without dropout, (B,).
        dropout_logits: Logits of N passes with dropout, (N, B, K).
        power: Exponent of the correction; the authors' is 3.
    """
    n_classes = dropout_logits.shape[-1]
    logits = dropout_logits.double()
    disagreement = (logits.argmax(dim=-1) != predicted).double().mean()
    evenness = (entropy_of_mean(logits.flatten(0, 1)) / math.log(n_classes)).clamp(0.0, 1.0)
    chance = 1.0 - 1.0 / n_classes
    correction = evenness**power
    if float(correction) == 0.0:
        return logits.new_tensor(1.0 - chance)
    return 1.0 - (disagreement / correction).clamp(0.0, chance)


def smooth(previous: Tensor | None, estimate: Tensor, keep: float = 0.6) -> Tensor:
    """Return the moving average that AETTA reports; the first estimate as it is.

    Args:
        previous: The average before this batch; None for the first batch.
        estimate: The estimate for this batch.
        keep: Weight of the previous average.
    """
    return estimate if previous is None else keep * previous + (1.0 - keep) * estimate
