"""Sums over samples, of bounded size, from which all measures of predictions follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.entropy import entropy, log_probs
from acclimate.measures.calibration import (
    N_FINE,
    Array,
    equal_mass_error,
    equal_width_error,
    find_bins,
)
from acclimate.measures.plain import to_float, to_plain


class Measures:
    """What is known of the predictions for some samples.

    It holds counts by class and a histogram of confidences, never a sample: about 90 kB and 24
    bytes a class, however long the stream. Two of them are added with `+`.

    >>> measures = Measures(n_classes=2)
    >>> measures.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> measures.n, measures.error, measures.error_by_class
    (2, 0.5, {0: 0.5})

    Args:
        n_classes: Number of logits.

    Attributes:
        n_by_class: Samples of each true class.
        n_errors_by_class: Wrong predictions among them.
        n_predicted: How often each class was predicted.
        nll_sum: Sum of the negative logarithms of the true classes' probabilities.
        entropy_sum: Sum of the predictions' entropies.
        n_by_bin: Samples in each bin of the histogram of confidences.
        n_correct_by_bin: Correct predictions among them.
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
        """Take in predictions and their labels.

        Raises:
            BadInput: The labels do not fit; nothing was counted.
        """
        if logits.dim() != 2 or logits.shape[1] != self.n_classes:
            raise BadInput(
                "wrong_shape",
                f"expected logits of shape (batch, {self.n_classes}), found {tuple(logits.shape)}.",
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

    def __add__(self, other: Measures) -> Self:
        """Return the measures of both sets of samples together."""
        if other.n_classes != self.n_classes or type(other) is not type(self):
            raise BadInput(
                "incompatible_measures",
                "expected measures over equally many classes, of images or of pixels, found "
                f"{self.n_classes} and {other.n_classes} ({type(self).__name__}, "
                f"{type(other).__name__}). Sum up each model on its own.",
            )
        both = type(self)(self.n_classes)
        for name in vars(both).keys() - {"n_classes"}:
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both

    @property
    def n(self) -> int:
        """Samples."""
        return int(self.n_by_class.sum())

    @property
    def n_errors(self) -> int:
        """Wrong predictions."""
        return int(self.n_errors_by_class.sum())

    @property
    def error(self) -> float:
        """Share of wrong predictions."""
        return self._mean(self.n_errors)

    @property
    def error_by_class(self) -> dict[int, float]:
        """Share of wrong predictions in each true class that came."""
        shares = self.n_errors_by_class / np.maximum(self.n_by_class, 1)
        return {k: float(shares[k]) for k in range(self.n_classes) if self.n_by_class[k]}

    @property
    def histogram(self) -> tuple[int, ...]:
        """How often each class was predicted."""
        return tuple(self.n_predicted.tolist())

    @property
    def class_shares(self) -> tuple[float, ...]:
        """Share of each class among the predictions."""
        return tuple(self._mean(count) for count in self.histogram)

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood of the true class, natural logarithm."""
        return self._mean(self.nll_sum)

    @property
    def entropy(self) -> float:
        """Mean entropy of the predictions, natural logarithm."""
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
        """Calibration error over 15 bins of equally many samples; see `equal_mass_error`."""
        self._mean(0)
        return equal_mass_error(self.n_by_bin, self.n_correct_by_bin, self.confidence_by_bin)

    def summary(self) -> dict[str, Any]:
        """Return the means as JSON types; errors are shares from 0 to 1."""
        names = ("n", "error", "nll", "entropy", "confidence", "ece", "adaptive_ece")
        summed: dict[str, Any] = to_plain({name: getattr(self, name) for name in names})
        return summed

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON types; of the histogram, the bins that are not empty."""
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
        """Return the measures that `to_dict` wrote.

        Raises:
            BadInput: Something is missing or was written with another histogram.
        """
        expected = cls(0).to_dict().keys()
        message = (
            f"expected measures with {', '.join(expected)} and {N_FINE} bins, found "
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
                "expected measures of some samples, found none: update them first.",
            )
        return total / self.n


def check_labels(y: Tensor, n: int, n_classes: int | None = None) -> None:
    """Refuse labels that are not one class number a sample.

    Raises:
        BadInput: Another length, not whole numbers, or out of range (if the range is given).
    """
    found = f"{tuple(y.shape)} of {y.dtype}" if isinstance(y, Tensor) else type(y).__name__
    message = (
        f"expected one class number for each of {n} samples, as a tensor of shape ({n},) of "
        f"whole numbers, found {found}."
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
            f"expected labels from 0 to {n_classes - 1}, as the model has {n_classes} logits, "
            f"found {low} to {high}. Number the classes as the model does.",
            found=tuple(sorted(set(y[(y < 0) | (y >= n_classes)].tolist()))),
            n_classes=n_classes,
        )


def _numbers(values: Tensor) -> Array:
    numbers: Array = values.cpu().double().numpy()  # in this order: not every device has double
    return numbers
