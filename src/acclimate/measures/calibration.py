"""Calibration errors from a histogram of confidences, whose size does not grow with the stream."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Bins of both calibration errors.
N_BINS = 15
#: Bins of the histogram. Fifteen times a power of two: `confidence * 3840` is then rounded exactly
#: as `confidence * 15` is, so that 256 neighbours are one of the 15 bins, to the last sample.
N_FINE = N_BINS * 256

Array = NDArray[Any]


def find_bins(confidence: Array) -> Array:
    """Return the number of each confidence's bin in the histogram.

    A bin has its lower edge and not its upper one, but for the last, which has the certain
    predictions too. What is not a number goes into the first bin and makes its sum no number.
    """
    finite = np.where(np.isfinite(confidence), confidence, 0.0)
    return np.clip((finite * N_FINE).astype(np.int64), 0, N_FINE - 1)


def equal_width_error(n: Array, n_correct: Array, confidence: Array) -> float:
    """Return the expected calibration error over 15 bins of equal width, exactly.

    The gap between the mean confidence and the share of correct predictions, averaged over bins
    with their shares of the samples.

    Args:
        n: Samples in each bin of the histogram.
        n_correct: Correct predictions among them.
        confidence: Sum of their confidences.
    """
    gaps = (n_correct - confidence).reshape(N_BINS, -1).sum(axis=1)
    return float(np.abs(gaps).sum() / n.sum())


def equal_mass_error(n: Array, n_correct: Array, confidence: Array) -> float:
    """Return the adaptive calibration error: over 15 bins with equally many samples.

    In order of confidence, bin k ends after sample ⌊k·n/15⌋. Samples within 1/3840 of each other
    share a bin of the histogram and are not told apart; where an edge cuts such a bin, its sums
    are divided in proportion. Each of the 14 edges can therefore be wrong by half the share of
    samples that are in the bin it cuts, at the very most; nothing is where each has one sample.

    Args:
        n: Samples in each bin of the histogram.
        n_correct: Correct predictions among them.
        confidence: Sum of their confidences.
    """
    filled = n > 0
    seen = _running_sum(n[filled])
    edges = np.arange(N_BINS + 1) * int(seen[-1]) // N_BINS
    gaps = np.interp(edges, seen, _running_sum((n_correct - confidence)[filled]))
    return float(np.abs(np.diff(gaps)).sum() / seen[-1])


def _running_sum(values: Array) -> Array:
    return np.concatenate([np.zeros(1, values.dtype), values.cumsum()])
