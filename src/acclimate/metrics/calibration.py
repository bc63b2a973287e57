"""Calibration errors from a histogram of confidences of bounded size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Number of bins of both calibration errors.
N_BINS = 15
#: Number of bins of the histogram: fifteen times a power of two, so that `confidence * 3840` is
#: rounded exactly like `confidence * 15`, and 256 adjacent bins are exactly one of the 15 bins.
N_FINE = N_BINS * 256

Array = NDArray[Any]


def find_bins(confidence: Array) -> Array:
    """Return the bin of each confidence in the histogram.

    A bin includes its lower edge but not its upper one, except for the last bin, which includes
    confidence 1. NaN is assigned to the first bin and makes its sum NaN.
    """
    finite = np.where(np.isfinite(confidence), confidence, 0.0)
    return np.clip((finite * N_FINE).astype(np.int64), 0, N_FINE - 1)


def equal_width_error(n: Array, n_correct: Array, confidence: Array) -> float:
    """Return the exact expected calibration error over 15 bins of equal width.

    It is the gap between the mean confidence and the share of correct predictions, averaged over
    bins weighted by their numbers of samples.

    Args:
        n: Number of samples in each bin of the histogram.
        n_correct: Number of correct predictions among them.
        confidence: Sum of their confidences.
    """
    gaps = (n_correct - confidence).reshape(N_BINS, -1).sum(axis=1)
    return float(np.abs(gaps).sum() / n.sum())


def equal_mass_error(n: Array, n_correct: Array, confidence: Array) -> float:
    """Return the adaptive calibration error over 15 bins with equally many samples.

    In order of confidence, bin k ends after sample ⌊k·n/15⌋. Samples within 1/3840 of each other
    share a bin of the histogram and cannot be distinguished; if an edge falls inside such a bin,
    its sums are divided in proportion. The error of each of the 14 edges is therefore at most half
    the share of samples in the bin that it divides; it is zero if each bin has one sample.

    Args:
        n: Number of samples in each bin of the histogram.
        n_correct: Number of correct predictions among them.
        confidence: Sum of their confidences.
    """
    filled = n > 0
    seen = _running_sum(n[filled])
    edges = np.arange(N_BINS + 1) * int(seen[-1]) // N_BINS
    gaps = np.interp(edges, seen, _running_sum((n_correct - confidence)[filled]))
    return float(np.abs(np.diff(gaps)).sum() / seen[-1])


def _running_sum(values: Array) -> Array:
    return np.concatenate([np.zeros(1, values.dtype), values.cumsum()])
