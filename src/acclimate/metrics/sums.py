"""Sums over samples, of bounded size, from which all metrics of predictions follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.entropy import entropy, log_probs
from acclimate.functional.pixels import count_pixels, find_ious

#: Number of bins of both calibration errors.
N_BINS = 15
#: Number of bins of the histogram: fifteen times a power of two, so that `confidence * 3840` is
#: rounded exactly like `confidence * 15`, and 256 adjacent bins are exactly one of the 15 bins.
N_FINE = N_BINS * 256

Array = NDArray[Any]

_COUNTS = ("n_by_class", "n_errors_by_class", "n_predicted")


class Sums:
    """Sums over the predictions of some samples.

    They contain counts by class and a histogram of confidences, but no samples: about 90 kB plus 24
    bytes per class, independently of the length of the stream. Add two of them with `+`.

    >>> sums = Sums(n_classes=2)
    >>> sums.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> sums.n, sums.error, sums.error_by_class
    (2, 0.5, {0: 0.5})

    Attributes:
        n_by_class: Number of samples of each true class.
        n_errors_by_class: Number of wrong predictions among them.
        n_predicted: Number of predictions of each class.
        nll_sum: Sum of the negative log-likelihoods of the true classes.
        entropy_sum: Sum of the entropies of the predictions.
        n_by_bin: Number of samples in each bin of the histogram of confidences.
        n_correct_by_bin: Number of correct predictions among them.
        confidence_by_bin: Sum of their confidences.
    """

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes
        self.n_by_class: Array = np.zeros(n_classes, np.int64)
        self.n_errors_by_class: Array = np.zeros(n_classes, np.int64)
        self.n_predicted: Array = np.zeros(n_classes, np.int64)
        self.nll_sum = 0.0
        self.entropy_sum = 0.0
        self.n_by_bin: Array = np.zeros(N_FINE, np.int64)
        self.n_correct_by_bin: Array = np.zeros(N_FINE, np.int64)
        self.confidence_by_bin: Array = np.zeros(N_FINE, np.float64)

    def update(self, logits: Tensor, y: Tensor) -> None:
        """Add predictions and their labels.

        Raises:
            BadInput: The labels do not fit. Nothing was added.
        """
        if logits.dim() != 2 or logits.shape[1] != self.n_classes:
            raise BadInput(
                "wrong_shape",
                f"Expected logits of shape (batch, {self.n_classes}), found {tuple(logits.shape)}.",
                found=tuple(logits.shape),
            )
        check_labels(y, len(logits), self.n_classes)
        logits, y = logits.detach(), y.to(logits.device).long()
        log_p = log_probs(logits)
        confidence = _numbers(log_p.amax(dim=1).exp())
        predicted, labels = logits.argmax(dim=1).cpu().numpy(), y.cpu().numpy()
        wrong = predicted != labels
        bins = _find_bins(confidence)
        self.n_by_class += np.bincount(labels, minlength=self.n_classes)
        self.n_errors_by_class += np.bincount(labels[wrong], minlength=self.n_classes)
        self.n_predicted += np.bincount(predicted, minlength=self.n_classes)
        self.nll_sum += float(-_numbers(log_p.gather(1, y[:, None])).sum())
        self.entropy_sum += float(_numbers(entropy(logits)).sum())
        np.add.at(self.n_by_bin, bins, 1)
        np.add.at(self.n_correct_by_bin, bins[~wrong], 1)
        np.add.at(self.confidence_by_bin, bins, confidence)

    def __add__(self, other: Sums) -> Self:
        """Return the sums over both sets of samples."""
        if other.n_classes != self.n_classes or type(other) is not type(self):
            raise BadInput(
                "incompatible_sums",
                "Expected sums with the same number of classes, both of images or both of pixels, "
                f"found {self.n_classes} and {other.n_classes} classes ({type(self).__name__}, "
                f"{type(other).__name__}). Sum the predictions of each model separately.",
            )
        both = type(self)(self.n_classes)
        for name in vars(both).keys() - {"n_classes"}:
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both

    @property
    def n(self) -> int:
        """Number of samples."""
        return int(self.n_by_class.sum())

    @property
    def n_errors(self) -> int:
        """Number of wrong predictions."""
        return int(self.n_errors_by_class.sum())

    @property
    def error(self) -> float:
        """Share of wrong predictions."""
        return self._mean(self.n_errors)

    @property
    def error_by_class(self) -> dict[int, float]:
        """Share of wrong predictions in each true class that occurred."""
        shares = self.n_errors_by_class / np.maximum(self.n_by_class, 1)
        return {k: float(shares[k]) for k in range(self.n_classes) if self.n_by_class[k]}

    @property
    def histogram(self) -> tuple[int, ...]:
        """Number of predictions of each class."""
        return tuple(self.n_predicted.tolist())

    @property
    def class_shares(self) -> tuple[float, ...]:
        """Share of each class among the predictions."""
        return tuple(self._mean(count) for count in self.histogram)

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood of the true class (natural logarithm)."""
        return self._mean(self.nll_sum)

    @property
    def entropy(self) -> float:
        """Mean entropy of the predictions (natural logarithm)."""
        return self._mean(self.entropy_sum)

    @property
    def confidence(self) -> float:
        """Mean probability of the predicted class."""
        return self._mean(float(self.confidence_by_bin.sum()))

    @property
    def ece(self) -> float:
        """Expected calibration error over 15 bins of equal width, from 0 to 1.

        It is the gap between the mean confidence and the share of correct predictions, averaged
        over bins weighted by their numbers of samples.
        """
        gaps = (self.n_correct_by_bin - self.confidence_by_bin).reshape(N_BINS, -1).sum(axis=1)
        return self._mean(float(np.abs(gaps).sum()))

    @property
    def adaptive_ece(self) -> float:
        """Calibration error over 15 bins with equally many samples.

        In order of confidence, bin k ends after sample ⌊k·n/15⌋. Samples within 1/3840 of each
        other share a bin of the histogram and cannot be distinguished; if an edge falls inside such
        a bin, its sums are divided in proportion. The error of each of the 14 edges is therefore at
        most half the share of samples in the bin that it divides.
        """
        filled = self.n_by_bin > 0
        seen = np.append(0, self.n_by_bin[filled].cumsum())
        gaps = (self.n_correct_by_bin - self.confidence_by_bin)[filled]
        edges = np.arange(N_BINS + 1) * self.n // N_BINS
        between = np.diff(np.interp(edges, seen, np.append(0.0, gaps.cumsum())))
        return self._mean(float(np.abs(between).sum()))

    def summary(self) -> dict[str, Any]:
        """Return the means as JSON types; errors are shares from 0 to 1."""
        names = ("n", "error", "nll", "entropy", "confidence", "ece", "adaptive_ece")
        summed: dict[str, Any] = to_plain({name: getattr(self, name) for name in names})
        return summed

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON types, with the non-empty bins of the histogram."""
        filled = self.n_by_bin.nonzero()[0]
        counts = (filled, self.n_by_bin[filled], self.n_correct_by_bin[filled])
        columns = (*(own.tolist() for own in counts), to_plain(self.confidence_by_bin[filled]))
        return {
            **{name: getattr(self, name).tolist() for name in _COUNTS},
            "nll_sum": to_plain(self.nll_sum),
            "entropy_sum": to_plain(self.entropy_sum),
            "n_bins": N_FINE,
            "bins": [list(row) for row in zip(*columns, strict=True)],
        }

    @classmethod
    def from_dict(cls, packed: Mapping[str, Any]) -> Self:
        """Build sums from the result of `to_dict`.

        Raises:
            BadInput: Fields are missing, or the histogram has another number of bins.
        """
        expected = cls(0).to_dict().keys()
        message = (
            f"Expected sums with {', '.join(expected)} and {N_FINE} bins, found "
            f"{', '.join(packed)} and {packed.get('n_bins')} bins. Evaluate again."
        )
        if packed.keys() != expected:
            raise BadInput(
                "wrong_fields",
                message,
                missing=tuple(name for name in expected if name not in packed),
                unknown=tuple(name for name in packed if name not in expected),
            )
        if packed["n_bins"] != N_FINE:
            raise BadInput("count_mismatch", message, expected=N_FINE, found=packed["n_bins"])
        made = cls(len(packed["n_by_class"]))
        for name in _COUNTS:
            setattr(made, name, np.array(packed[name], np.int64))
        made.nll_sum, made.entropy_sum = (to_float(packed[k]) for k in ("nll_sum", "entropy_sum"))
        for number, n, n_correct, confidence in packed["bins"]:
            made.n_by_bin[number] = n
            made.n_correct_by_bin[number] = n_correct
            made.confidence_by_bin[number] = to_float(confidence)
        return made

    def _mean(self, total: float) -> float:
        if self.n == 0:
            raise BadInput(
                "no_samples_measured",
                "Expected sums over at least one sample, found none. Call update() first.",
            )
        return total / self.n


class PixelSums(Sums):
    """Sums over the predictions of some pixels; a pixel is a sample.

    >>> import torch
    >>> sums = PixelSums(n_classes=3)
    >>> sums.update(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 1, 1]))
    >>> sums.iou_by_class, sums.miou
    ({0: 0.5, 1: 0.5}, 0.5)

    Attributes:
        confusion: Number of pixels of each true class (row) and predicted class (column).
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__(n_classes)
        self.confusion: Array = np.zeros((n_classes, n_classes), np.int64)

    def update(self, logits: Tensor, y: Tensor) -> None:
        """Add the predictions of pixels (rows, K) and their labels (rows,)."""
        super().update(logits, y)
        given = logits.argmax(1).cpu()
        self.confusion += count_pixels(given, y.cpu().long(), self.n_classes).numpy()

    @property
    def iou_by_class(self) -> dict[int, float]:
        """Intersection over union of each class that occurs in truth or predictions."""
        shares = find_ious(torch.from_numpy(self.confusion)).tolist()
        return {k: share for k, share in enumerate(shares) if not math.isnan(share)}

    @property
    def miou(self) -> float:
        """Mean intersection over union of the classes that occur in truth or predictions."""
        self._mean(0)  # refuses sums over no pixels
        shares = self.iou_by_class.values()
        return sum(shares) / len(shares)

    @property
    def pixel_accuracy(self) -> float:
        """Share of pixels that were predicted correctly."""
        return 1.0 - self.error

    def summary(self) -> dict[str, Any]:
        """Return the means as JSON types; errors are shares from 0 to 1."""
        own = {name: getattr(self, name) for name in ("miou", "pixel_accuracy", "iou_by_class")}
        return {**super().summary(), **to_plain(own)}

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON types."""
        return {**super().to_dict(), "confusion": self.confusion.tolist()}

    @classmethod
    def from_dict(cls, packed: Mapping[str, Any]) -> Self:
        """Build sums from the result of `to_dict`."""
        made = super().from_dict(packed)
        made.confusion = np.array(packed["confusion"], np.int64)
        return made


def check_labels(y: Tensor, n: int, n_classes: int | None = None) -> None:
    """Refuse labels that are not one class number per sample, below `n_classes` if given."""
    found = f"{tuple(y.shape)} of {y.dtype}" if isinstance(y, Tensor) else type(y).__name__
    message = (
        f"Expected one class number per sample, as a tensor of integers of shape ({n},), found "
        f"{found}."
    )
    if not isinstance(y, Tensor):
        raise BadInput("wrong_type", message, option="y", found=found)
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise BadInput("wrong_dtype", message, found=str(y.dtype).removeprefix("torch."))
    if y.shape != (n,):
        raise BadInput("wrong_shape", message, found=tuple(y.shape))
    if n == 0 or n_classes is None:
        return
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= n_classes:
        raise BadInput(
            "wrong_labels",
            f"Expected labels from 0 to {n_classes - 1}, since the model has {n_classes} logits, "
            f"found {low} to {high}. Number the classes in the order of the logits.",
            found=tuple(sorted(set(y[(y < 0) | (y >= n_classes)].tolist()))),
            n_classes=n_classes,
        )


def to_plain(value: Any) -> Any:
    """Convert a value to JSON types, with any nesting: keys become strings, and numbers that are
    not finite become null.
    """
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return to_plain(value.tolist())
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_float(value: float | None) -> float:
    """Return the number for a result of `to_plain`; null becomes NaN."""
    return math.nan if value is None else float(value)


def _find_bins(confidence: Array) -> Array:
    """Return the bin of each confidence in the histogram.

    A bin includes its lower edge but not its upper one, except for the last bin, which includes
    confidence 1. NaN is assigned to the first bin and makes its sum NaN.
    """
    finite = np.where(np.isfinite(confidence), confidence, 0.0)
    return np.clip((finite * N_FINE).astype(np.int64), 0, N_FINE - 1)


def _numbers(values: Tensor) -> Array:
    # Moved first, because not every device supports double precision.
    numbers: Array = values.cpu().double().numpy()
    return numbers
