"""Sums over samples, of bounded size, from which all metrics of predictions follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.entropy import entropy, log_probs
from acclimate.metrics.calibration import (
    N_FINE,
    Array,
    equal_mass_error,
    equal_width_error,
    find_bins,
)
from acclimate.metrics.plain import to_float, to_plain


class Sums:
    """Sums over the predictions of some samples.

    They contain counts by class and a histogram of confidences, but no samples: about 90 kB plus 24
    bytes per class, independently of the length of the stream. Add two of them with `+`.

    >>> sums = Sums(n_classes=2)
    >>> sums.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> sums.n, sums.error, sums.error_by_class
    (2, 0.5, {0: 0.5})

    Args:
        n_classes: Number of logits.

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
        bins = find_bins(confidence)
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
        """Expected calibration error over 15 bins of equal width, from 0 to 1."""
        self._mean(0)
        return equal_width_error(self.n_by_bin, self.n_correct_by_bin, self.confidence_by_bin)

    @property
    def adaptive_ece(self) -> float:
        """Calibration error over 15 bins with equally many samples; see `equal_mass_error`."""
        self._mean(0)
        return equal_mass_error(self.n_by_bin, self.n_correct_by_bin, self.confidence_by_bin)

    def summary(self) -> dict[str, Any]:
        """Return the means as JSON types; errors are shares from 0 to 1."""
        names = ("n", "error", "nll", "entropy", "confidence", "ece", "adaptive_ece")
        summed: dict[str, Any] = to_plain({name: getattr(self, name) for name in names})
        return summed

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON types, with the non-empty bins of the histogram."""
        filled = self.n_by_bin.nonzero()[0]
        columns = (filled, self.n_by_bin, self.n_correct_by_bin, self.confidence_by_bin)
        rows = zip(columns[0], *(column[filled] for column in columns[1:]), strict=True)
        packed: dict[str, Any] = to_plain(
            {
                "n_by_class": self.n_by_class,
                "n_errors_by_class": self.n_errors_by_class,
                "n_predicted": self.n_predicted,
                "nll_sum": self.nll_sum,
                "entropy_sum": self.entropy_sum,
                "n_bins": N_FINE,
                "bins": [[int(k), int(n), int(c), float(s)] for k, n, c, s in rows],
            }
        )
        return packed

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
        for name in ("n_by_class", "n_errors_by_class", "n_predicted"):
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


def check_labels(y: Tensor, n: int, n_classes: int | None = None) -> None:
    """Refuse labels that are not one class number per sample.

    Raises:
        BadInput: The labels have another length, are not integers, or are out of range (if
            `n_classes` is given).
    """
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


def _numbers(values: Tensor) -> Array:
    # Moved first, because not every device supports double precision.
    numbers: Array = values.cpu().double().numpy()
    return numbers
