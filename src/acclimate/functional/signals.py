"""Signals of accuracy that need no labels, and maps from signals to accuracy.

Three models predict the same images: the source model, the adapted one, and the source model with
statistics of the batch, called norm. A *record* states what they predicted for one image, or for
one pixel of a dense model. The signals of a window of records are:

* confidence: the mean largest probability;
* consistency: the share of predictions that are the same for the mirrored image (not of norm);
* concentration: log(c + 1/K) / log K, where c is the share of pairs of records with equal
  predictions, without bias for windows of any size; −1 or less if predictions spread over all
  classes, and about 0 if all are equal;
* repetition: the share of predictions that equal the one before;

each of the three models, and the share of equal predictions of each two of them: agreement (of the
source and the adapted model), norm agreement (of the adapted model and norm) and source-norm
agreement. Norm tells what was learned from what statistics alone do: a model that collapses slowly
is confident, consistent and spread over classes, but moves away from it. And what statistics of a
batch do to the source model depends on the shift and on the batch.

None of them is an accuracy: the confidence of a collapsed model is perfect, batch statistics of one
class make predictions spread over all classes. An `AccuracyMap` is a regression from signals to
accuracies, fitted where labels are known: on source images under synthetic shifts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from acclimate.functional.entropy import log_probs
from acclimate.functional.pixels import Grid
from acclimate.schema import Schema, TensorOf, positive

#: The columns of a record; `steady` is 1 if the prediction for the mirrored image is the same, 0 if
#: not. NaN is what is not known.
RECORD = (
    *("source_class", "source_confidence", "source_steady"),
    *("adapted_class", "adapted_confidence", "adapted_steady"),
    *("norm_class", "norm_confidence"),
)

SIGNALS = (
    *("source_confidence", "source_consistency", "source_concentration", "source_repetition"),
    *("adapted_confidence", "adapted_consistency", "adapted_concentration", "adapted_repetition"),
    *("norm_confidence", "norm_concentration", "norm_repetition"),
    *("agreement", "norm_agreement", "source_norm_agreement"),
)

#: What a map estimates: two accuracies, and how much higher the adapted one is.
TARGETS = ("source", "adapted", "gain")
#: Signals by which an estimate may only rise (1) or only fall (-1), for each target.
MONOTONE: Mapping[str, Mapping[str, int]] = {
    "source": {"source_confidence": 1, "source_consistency": 1},
    "adapted": {"adapted_confidence": 1, "adapted_consistency": 1},
    "gain": {
        "adapted_confidence": 1,
        "adapted_consistency": 1,
        "source_confidence": -1,
        "source_consistency": -1,
    },
}

#: Pixels of each image whose predictions are recorded if a model predicts every pixel.
PIXELS_PER_IMAGE = 32

_RIDGE = 1.0
_UNLIKELY = 0.3  # a kind of stream that is less likely than this is left out of the blend
_NORMAL_95 = 1.959964


def mirror_back(rows: Tensor, grid: Grid | None) -> Tensor:
    """Return predictions for mirrored images in the order of the pixels of the images."""
    return rows if grid is None else rows.reshape(*grid, -1).flip(2).flatten(0, 2)


def pick_rows(rows: Tensor, grid: Grid | None) -> Tensor:
    """Return the rows whose predictions are recorded: of samples all, of pixels some."""
    if grid is None:
        return rows
    places = find_places(grid).to(rows.device)
    by_image = rows.reshape(grid.n_images, grid.height * grid.width, -1)
    return by_image[:, places].flatten(0, 1)


def find_places(grid: Grid) -> Tensor:
    """Return the pixels of an image whose predictions are recorded."""
    n_pixels = grid.height * grid.width
    # Half a step from the border, and not always in the same column.
    steps = (torch.arange(PIXELS_PER_IMAGE) + 0.5) * n_pixels / PIXELS_PER_IMAGE
    return ((steps + torch.arange(PIXELS_PER_IMAGE) * 7 % grid.width) % n_pixels).long()


def describe_predictions(
    logits: Tensor, mirrored: Tensor | None, plain: Tensor | None = None
) -> Tensor:
    """Return class, confidence and steadiness of predictions: (rows, 3), in single precision.

    Args:
        logits: Predictions (rows, K).
        mirrored: Predictions for the mirrored images; None if they are not known.
        plain: Logits that confidence is measured by, if the predictions are scaled.
    """
    predicted = logits.argmax(dim=1)
    confidence = log_probs(logits if plain is None else plain).exp().amax(dim=1)
    if mirrored is None:
        steady = torch.full_like(confidence, torch.nan)
    else:
        steady = (mirrored.argmax(dim=1) == predicted).to(confidence.dtype)
    columns = [predicted.to(confidence.dtype), confidence, steady]
    return torch.stack(columns, dim=1).float().cpu()


def measure_signals(records: Tensor, n_classes: int) -> Tensor:
    """Return the signals of a window of records (rows, 8), in double precision.

    Signals that cannot be measured are NaN: consistency if no mirrored image was predicted,
    concentration and repetition of a single record, those of norm if it was not run.
    """
    records = records.double()
    probed = records[~records[:, 6].isnan()]
    source, adapted, norm = (
        rows[:, 3 * place : 3 * place + 3] for place, rows in enumerate((records, records, probed))
    )
    signals = [
        signal for model in (source, adapted, norm) for signal in _signals_of(model, n_classes)
    ]
    pairs = [(records, 0, 3), (probed, 3, 6), (probed, 0, 6)]
    shares = [(rows[:, a] == rows[:, b]).double().mean() for rows, a, b in pairs]
    return torch.stack([*signals, *shares])


def _signals_of(model: Tensor, n_classes: int) -> list[Tensor]:
    predicted, confidence, *steady = model.unbind(dim=1)
    n = len(predicted)
    counts = torch.bincount(predicted.long(), minlength=n_classes).double()
    n_pairs = n * (n - 1) or torch.nan
    equal_pairs = (counts * (counts - 1)).sum() / n_pairs
    share = (equal_pairs + 1 / n_classes).log() / torch.tensor(float(n_classes)).double().log()
    repetition = (predicted[1:] == predicted[:-1]).double().mean()
    return [confidence.mean(), *(each.nanmean() for each in steady), share, repetition]


def is_correlated(predicted: Tensor) -> bool:
    """Return whether predictions equal the one before more often than in a random order.

    Args:
        predicted: Predicted classes, at least two, in the order of the stream.
    """
    n = len(predicted)
    counts = torch.bincount(predicted).double()
    chance = float((counts * (counts - 1)).sum() / (n * (n - 1)))
    repeated = float((predicted[1:] == predicted[:-1]).double().mean())
    error = math.sqrt(max(chance * (1 - chance), 1 / n) / n)
    return repeated - chance > 6 * error


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f})"


@dataclass(frozen=True)
class Estimate:
    """Estimated accuracies on a window of predictions, without labels.

    Attributes:
        source: Accuracy of the source model.
        adapted: Accuracy of the adapted model.
        gain: How much higher the second is; estimated by itself.
        correlation: How much the stream seems to show few classes at a time, from 0 to 1.
        n_samples: Number of images in the window.
        is_familiar: Whether the signals lie within what was calibrated. If not, intervals are wider
            and may still be too narrow.
    """

    source: Interval
    adapted: Interval
    gain: Interval
    correlation: float
    n_samples: int
    is_familiar: bool

    def __str__(self) -> str:
        text = f"source {self.source}, adapted {self.adapted}, last {self.n_samples} images"
        return text if self.is_familiar else f"{text}; unlike any calibrated shift"


@dataclass(frozen=True)
class AccuracyMap:
    """A map from the signals of windows of one size to accuracies.

    The same signals mean different things on a stream whose classes are mixed and on one that shows
    few classes at a time: there, concentrated predictions are right. So there are two ridge
    regressions, one for each kind of stream, weighted by a logistic regression that tells the kinds
    apart by the signals and their products. Each is monotone in the signals of `MONOTONE`: a model
    that becomes more confident and more consistent is never taken for a worse one.

    Attributes:
        size: Number of images in the windows that it was fitted on.
        centre: Mean of each signal.
        scale: Standard deviation of each signal.
        gate: Weights of the logistic regression.
        weights: (2, targets, 1 + signals): for mixed and for correlated streams, intercept and
            weights of the standardised signals.
        spread: Standard deviation of the error of each target for shifts that were left out; of the
            fit itself if there is one shift only.
        variance: (2, targets, 2): for mixed and for correlated streams, the variance of that error
            as a constant and a factor of the squared share of images on which the models disagree:
            where they agree, one is as accurate as the other.
        inverse: Inverse of the regularised Gram matrix, by which extrapolation is recognised.
        reach: Largest leverage of a calibrated window.
    """

    size: int
    centre: Tensor
    scale: Tensor
    gate: Tensor
    weights: Tensor
    spread: Tensor
    variance: Tensor
    inverse: Tensor
    reach: Tensor

    @classmethod
    def fit(
        cls,
        size: int,
        signals: Tensor,
        accuracies: Tensor,
        is_correlated: Tensor,
        shifts: Sequence[str],
    ) -> Self:
        """Fit a map.

        Args:
            size: Number of images in each window.
            signals: (windows, signals), all finite.
            accuracies: (windows, 2): of the source and of the adapted model.
            is_correlated: (windows,): whether the stream showed few classes at a time.
            shifts: The shift of each window. Errors are measured by leaving out one at a time; if
                there is only one, they are those of the fit itself, which are too small.
        """
        accuracies = accuracies.double()
        targets = torch.cat([accuracies, accuracies[:, 1:] - accuracies[:, :1]], dim=1)
        centre, scale = signals.mean(dim=0), signals.std(dim=0, correction=0) + 1e-3
        rows = _with_one((signals.double() - centre) / scale)
        inverse = torch.linalg.inv(_gram(rows))
        reach = ((rows @ inverse) * rows).sum(dim=1).max()

        def fit(chosen: Tensor) -> tuple[Tensor, Tensor]:
            kinds = [chosen & ~is_correlated, chosen & is_correlated]
            # Too few windows of a kind: one regression serves both.
            kinds = [kind if int(kind.sum()) > rows.shape[1] else chosen for kind in kinds]
            weights = torch.stack([_ridge(rows[kind], targets[kind]) for kind in kinds])
            return _logistic(_products(rows[chosen]), is_correlated[chosen].double()), weights

        errors = torch.zeros_like(targets)
        for shift in dict.fromkeys(shifts):
            left_out = torch.tensor([other == shift for other in shifts])
            # A single shift cannot be left out: its errors are those of the fit itself.
            fitted = left_out if bool(left_out.all()) else ~left_out
            errors[left_out] = _blend(rows[left_out], *fit(fitted))[0] - targets[left_out]
        everything = torch.ones(len(rows), dtype=torch.bool)
        gate, weights = fit(everything)
        disagreement = 1 - signals[:, SIGNALS.index("agreement")].double()
        kinds = [~is_correlated, is_correlated]
        kinds = [kind if bool(kind.any()) else everything for kind in kinds]
        variance = torch.stack([_fit_variance(errors[kind], disagreement[kind]) for kind in kinds])
        spread = errors.square().mean(dim=0).sqrt()
        return cls(size, centre, scale, gate, weights, spread, variance, inverse, reach)

    def estimate(self, signals: Tensor, n_samples: int) -> Estimate:
        """Estimate accuracies from the signals of a window of `n_samples` images."""
        row = _with_one(((signals - self.centre) / self.scale)[None])
        found_values, correlation = _blend(row, self.gate, self.weights)
        leverage = float((row @ self.inverse @ row.T)[0, 0])
        # A window of fewer images than calibrated has more noise of sampling.
        noise = max(0.0, 1 / max(n_samples, 1) - 1 / self.size) / 4
        disagreement = 1 - float(signals[SIGNALS.index("agreement")])
        mixed, correlated = self.variance
        constant, factor = torch.lerp(mixed, correlated, correlation[0]).T
        variances = constant + factor * disagreement**2
        # Where the models agree, none is better.
        most = min(max(disagreement, 0.0), 1.0)
        of_source, of_adapted, difference = found_values[0].tolist()
        difference = min(max(difference, -most), most)
        # Decisions rest on the gain: the accuracies are shifted so that they differ by it.
        excess = of_adapted - of_source - difference
        part = float(variances[0] / (variances[0] + variances[1]).clamp_min(1e-12))
        values = of_source + part * excess, of_adapted - (1 - part) * excess, difference
        limits = (0.0, 1.0), (0.0, 1.0), (-most, most)
        found = []
        for value, variance, (low, high) in zip(values, variances.tolist(), limits, strict=True):
            half = _NORMAL_95 * (variance * (1 + leverage) + noise) ** 0.5
            ends = (min(max(end, low), high) for end in (value, value - half, value + half))
            found.append(Interval(*ends))
        source, adapted, gain = found
        is_familiar = leverage <= float(self.reach)
        return Estimate(source, adapted, gain, float(correlation[0]), n_samples, is_familiar)

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the map as tensors, for an artifact."""
        names = ("centre", "scale", "gate", "weights", "spread", "variance", "inverse", "reach")
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def tensor_schemas() -> dict[str, Schema]:
        """Return what the tensors of `to_tensors` must look like when a file is loaded."""
        n, columns = len(SIGNALS), 1 + len(SIGNALS)
        return {
            "centre": TensorOf((n,)),
            "scale": positive((n,)),
            "gate": TensorOf((columns + n * (n + 1) // 2,)),
            "weights": TensorOf((2, len(TARGETS), columns)),
            "spread": TensorOf((len(TARGETS),), low=0),
            "variance": TensorOf((2, len(TARGETS), 2), low=0),
            "inverse": TensorOf((columns, columns)),
            "reach": TensorOf(()),
        }

    @classmethod
    def from_tensors(cls, size: int, tensors: Mapping[str, Tensor]) -> Self:
        """Return the map that `to_tensors` described."""
        return cls(size, **{name: tensor.double() for name, tensor in tensors.items()})


def _fit_variance(errors: Tensor, disagreement: Tensor) -> Tensor:
    """Return c and d of the variance c + d · disagreement², neither negative, for each target."""
    squares = errors.square()
    x = disagreement.square()
    centred = x - x.mean()
    factor = (centred @ squares / centred.square().sum().clamp_min(1e-12)).clamp_min(0)
    constant = squares.mean(dim=0) - factor * x.mean()
    # Without a constant, the line through zero.
    through_zero = x @ squares / x.square().sum().clamp_min(1e-12)
    factor = torch.where(constant < 0, through_zero, factor)
    return torch.stack([constant.clamp_min(0), factor], dim=1)


def _with_one(rows: Tensor) -> Tensor:
    return torch.cat([torch.ones(len(rows), 1).double(), rows], dim=1)


def _products(rows: Tensor) -> Tensor:
    """Return rows (1, signals) with the products of all pairs of signals appended."""
    signals = rows[:, 1:].clamp(-4, 4)
    first, second = torch.triu_indices(signals.shape[1], signals.shape[1])
    return torch.cat([rows[:, :1], signals, signals[:, first] * signals[:, second]], dim=1)


def _blend(rows: Tensor, gate: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the targets (rows, targets), and the probability that the stream is correlated."""
    share = torch.sigmoid(_products(rows) @ gate)
    # The kinds differ so much that a small share of the unlikely one would spoil the estimate.
    share = ((share - _UNLIKELY) / (1 - 2 * _UNLIKELY)).clamp(0, 1)
    mixed, correlated = ((rows @ kind.T).clamp(-1, 1) for kind in weights)
    return torch.lerp(mixed, correlated, share[:, None]), share


def _gram(rows: Tensor, curvature: Tensor | None = None) -> Tensor:
    penalty = torch.full((rows.shape[1],), _RIDGE).double()
    penalty[0] = 1e-6  # the intercept is not shrunk
    weighted = rows if curvature is None else rows * curvature[:, None]
    gram: Tensor = weighted.T @ rows + torch.diag(penalty)
    return gram


def _ridge(rows: Tensor, targets: Tensor) -> Tensor:
    """Return intercept and weights for each target, (targets, columns), monotone as required."""
    gram, moments = _gram(rows), rows.T @ targets
    return torch.stack(
        [
            _solve_monotone(gram, moments[:, place], MONOTONE[name])
            for place, name in enumerate(TARGETS)
        ]
    )


def _solve_monotone(gram: Tensor, moments: Tensor, signs: Mapping[str, int]) -> Tensor:
    """Return the best weights of which none has a wrong sign.

    Some of the signed weights are zero at the optimum. There are so few of them that every choice
    is tried.
    """
    places = [1 + SIGNALS.index(name) for name in signs]
    wanted = torch.tensor(list(signs.values())).double()
    best, lowest = torch.zeros_like(moments), math.inf
    for is_free in itertools.product((True, False), repeat=len(places)):
        zeros = {place for place, free in zip(places, is_free, strict=True) if not free}
        kept = torch.tensor([place for place in range(len(moments)) if place not in zeros])
        weights = torch.zeros_like(moments)
        weights[kept] = torch.linalg.solve(gram[kept][:, kept], moments[kept])
        loss = float(weights @ gram @ weights / 2 - weights @ moments)
        if bool((weights[places] * wanted >= 0).all()) and loss < lowest:
            best, lowest = weights, loss
    return best


def _logistic(rows: Tensor, is_true: Tensor, n_steps: int = 50) -> Tensor:
    """Return the weights of a logistic regression with a ridge penalty, by Newton's method."""
    weights = torch.zeros(rows.shape[1]).double()
    for _ in range(n_steps):
        p = torch.sigmoid(rows @ weights)
        shrinkage = _RIDGE * weights
        shrinkage[0] = 0.0
        gradient = rows.T @ (p - is_true) + shrinkage
        step = torch.linalg.solve(_gram(rows, p * (1 - p)), gradient)
        weights = weights - step
        if float(step.abs().max()) < 1e-9:
            break
    return weights
