"""What is known of one batch: its record if there are labels, and the metrics that are watched.

The command line writes the metrics as JSON lines and to TensorBoard, and the server exports them.
Names, kinds and help texts are defined once, as fields of `BatchMetrics`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.entropy import entropy, log_probs
from acclimate.functional.pixels import to_rows
from acclimate.functional.signals import Estimate, Interval
from acclimate.metrics.sums import to_float, to_plain

if TYPE_CHECKING:
    from acclimate.methods.method import Counts, Method


@dataclass(frozen=True)
class Record:
    """The record of one batch.

    Attributes:
        domain: Name of the shift.
        index: Number of the batch in the stream, from 0.
        n: Number of predictions that count: one per sample, or one per labelled pixel.
        n_errors: Number of wrong predictions among them.
        entropy: Mean entropy of the predictions.
        nll: Mean negative log-likelihood of the true class.
        ms: Wall time of the call in milliseconds.
        n_skipped: Number of batches since the last reset that were predicted without an update.
        n_restored: Number of states that the guard or the method restored since the last reset.
        predictions: The predicted classes of the samples that count, (samples,) or (images,
            height, width); None if they were not kept.
        by_domain: Number of predictions and of errors of each domain in the batch.
        epoch: Number of the pass over the stream, from 1.
        learned: Whether the method was allowed to learn from the batch.
        is_probe: Whether the batch was only predicted as a probe, so that it counts in no mean. A
            window that is not learned from yet is not a probe: its newest sample counts.
        confidence: Mean probability of the predicted class.
        n_forwards: Number of forward passes; not counted if the method was not allowed to learn.
        n_backwards: Number of backward passes.
        updated: Whether an update of parameters was applied.
        skipped: Reason why this batch was predicted without an update; None if it was not skipped.
        restored: Whether the guard restored a state after this batch.
        peak_memory: Memory in bytes: on CUDA the peak of this call, on MPS the memory in use after
            it, elsewhere the peak of the whole process so far; None if it is not available.
        losses: The minimised loss and its terms, if the method notes them; empty for a batch that
            was not learned from.
        n_pixel_images: Number of images whose pixels were predicted; None for whole images.
        estimate: What the guard estimated after this batch, on its window; None if there is no
            guard, or if it has seen too few images.
        by_source: Whether the source model answered; None if there is no guard.
        rested: Whether the guard stopped learning after this batch; None if there is no guard.
        effective_classes: Effective number of predicted classes; None if it was not measured.
        drift: Distance of the trained parameters from the source's, relative to their norm; None if
            it was not measured.
    """

    domain: str
    index: int
    n: int
    n_errors: int
    entropy: float
    nll: float
    ms: float
    n_skipped: int
    n_restored: int
    predictions: Tensor | None
    by_domain: dict[str, tuple[int, int]]
    epoch: int = 1
    learned: bool = True
    is_probe: bool = False
    confidence: float = math.nan
    n_forwards: int = 0
    n_backwards: int = 0
    updated: bool = False
    skipped: str | None = None
    restored: bool = False
    peak_memory: int | None = None
    losses: dict[str, float] = field(default_factory=dict)
    n_pixel_images: int | None = None
    estimate: Estimate | None = None
    by_source: bool | None = None
    rested: bool | None = None
    effective_classes: float | None = None
    drift: float | None = None

    @property
    def estimated_accuracy(self) -> float | None:
        """Estimated accuracy of the model that answered; None if there is no estimate."""
        if self.estimate is None:
            return None
        return (self.estimate.source if self.by_source else self.estimate.adapted).value

    @property
    def n_images(self) -> int:
        """Number of samples that count, independently of the predictions per sample."""
        return self.n if self.n_pixel_images is None else self.n_pixel_images

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except predictions as JSON types; non-finite numbers are None."""
        left_out = {name for name in _WATCHED if getattr(self, name) is None}
        left_out |= set(_OF_GUARD) if self.by_source is None else set()
        values = {name: getattr(self, name) for name in _NAMES if name not in left_out}
        if self.estimate is not None and "estimate" in values:
            values["estimate"] = dataclasses.asdict(self.estimate)
        line: dict[str, Any] = to_plain(values)
        return line

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Record:
        """Build a record without predictions from the result of `to_dict`.

        Raises:
            BadInput: A field is missing or unknown.
        """
        # Fields that older versions did not write, or that are written for pixels or guards only.
        line = {"losses": {}, **dict.fromkeys((*_WATCHED, *_OF_GUARD)), **line}
        if line.keys() != set(_NAMES):
            missing = tuple(name for name in _NAMES if name not in line)
            unknown = tuple(name for name in line if name not in _NAMES)
            raise BadInput(
                "wrong_fields",
                "Expected the fields of a record, found missing fields "
                f"({', '.join(missing) or 'none'}) or unknown ones "
                f"({', '.join(unknown) or 'none'}). Pass a line written by Record.to_dict().",
                missing=missing,
                unknown=unknown,
            )
        values: dict[str, Any] = {**line, **{name: to_float(line[name]) for name in _FLOATS}}
        values["losses"] = {name: to_float(value) for name, value in line["losses"].items()}
        values["by_domain"] = {name: tuple(pair) for name, pair in line["by_domain"].items()}
        if (estimate := line["estimate"]) is not None:
            intervals = {name: Interval(**estimate[name]) for name in _INTERVALS}
            values["estimate"] = Estimate(**{**estimate, **intervals})
        return cls(**values, predictions=None)


_NAMES = tuple(f.name for f in dataclasses.fields(Record) if f.name != "predictions")
_OF_GUARD = ("estimate", "by_source", "rested")
_WATCHED = ("n_pixel_images", "effective_classes", "drift")
_FLOATS = ("entropy", "nll", "ms", "confidence")
_INTERVALS = ("source", "adapted", "gain")


#: `counter`: an amount of this batch, to be added up over batches; `gauge`: a value after this
#: batch; `label`: a text.
Kind = Literal["counter", "gauge", "label"]


def _metric(kind: Kind, text: str, **default: Any) -> Any:
    return field(**default, metadata={"kind": kind, "help": text})


def _gauge(text: str) -> Any:
    return _metric("gauge", text, default=None)


@dataclass(frozen=True, kw_only=True)
class BatchMetrics:
    """The metrics of one batch. Values that are not known are None."""

    index: int = _metric("label", "Number of the batch in the stream, from 0.")
    samples: int = _metric("counter", "Samples of the batch.")
    updates: int = _metric("counter", "Updates of parameters that were applied.")
    skipped: str | None = _metric("label", "Reason why there was no update.", default=None)
    restored: int = _metric("counter", "Earlier states that the guard or the method restored.")
    entropy: float = _metric("gauge", "Mean entropy of the predictions, in nats.")
    confidence: float = _metric("gauge", "Mean probability of the predicted class.")
    effective_classes: float | None = _gauge(
        "Effective number of predicted classes: exp of the entropy of the mean prediction."
    )
    answered_by: str = _metric("label", "The model that answered: source or adapted.")
    source_accuracy: float | None = _gauge("Estimated accuracy of the source model.")
    source_accuracy_low: float | None = _gauge("Lower end of its 95 % interval.")
    source_accuracy_high: float | None = _gauge("Upper end of its 95 % interval.")
    adapted_accuracy: float | None = _gauge("Estimated accuracy of the adapted model.")
    adapted_accuracy_low: float | None = _gauge("Lower end of its 95 % interval.")
    adapted_accuracy_high: float | None = _gauge("Upper end of its 95 % interval.")
    drift: float | None = _gauge(
        "Distance of the trained parameters from those of the source, relative to their norm."
    )
    latency_ms: float = _metric("gauge", "Wall time of the call in milliseconds.")

    @classmethod
    def of_call(
        cls, adapted: Method, logits: Tensor, *, index: int, before: Counts, latency_ms: float
    ) -> BatchMetrics:
        """Measure a call that has just returned.

        Args:
            adapted: The adapted model.
            logits: Its logits: (batch, classes), or (batch, classes, height, width).
            index: Number of the batch in the stream.
            before: A copy of `adapted.counts` from before the call.
            latency_ms: Wall time of the call.
        """
        counts = adapted.counts
        guard = None if adapted.guard is None else adapted.report()
        rows = logits.detach()
        rows = to_rows(rows) if rows.dim() == 4 else rows
        probs = log_probs(rows).exp()
        return cls(
            index=index,
            samples=len(logits),
            updates=counts.updates - before.updates,
            skipped=find_skipped(before, counts),
            restored=counts.restored - before.restored,
            entropy=float(entropy(rows).double().mean()),
            confidence=float(probs.amax(dim=1).double().mean()),
            effective_classes=count_effective_classes(probs),
            answered_by="adapted" if guard is None else guard.answers,
            **_describe_estimate(None if guard is None else guard.estimate),
            drift=measure_drift(adapted),
            latency_ms=latency_ms,
        )

    @classmethod
    def of_record(cls, record: Record) -> BatchMetrics:
        """Return the metrics of a batch that was evaluated with labels."""
        return cls(
            index=record.index,
            samples=record.n_images,
            updates=int(record.updated),
            skipped=record.skipped,
            restored=int(record.restored),
            entropy=record.entropy,
            confidence=record.confidence,
            effective_classes=record.effective_classes,
            answered_by="source" if record.by_source else "adapted",
            **_describe_estimate(record.estimate),
            drift=record.drift,
            latency_ms=record.ms,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all metrics as JSON types; numbers that are not finite are None."""
        values: dict[str, Any] = to_plain(dataclasses.asdict(self))
        return values

    def numbers(self) -> dict[str, float]:
        """Return the counters and gauges that are known, without labels."""
        found = {name: getattr(self, name) for name in METRICS if METRICS[name].kind != "label"}
        return {
            name: float(value)
            for name, value in found.items()
            if value is not None and math.isfinite(value)
        }


@dataclass(frozen=True)
class MetricInfo:
    """What a metric is: its kind, and one sentence about it."""

    kind: Kind
    help: str


#: All metrics by name.
METRICS: Mapping[str, MetricInfo] = {
    spec.name: MetricInfo(spec.metadata["kind"], spec.metadata["help"])
    for spec in dataclasses.fields(BatchMetrics)
}


def find_skipped(before: Counts, after: Counts) -> str | None:
    """Return why a batch was predicted without an update; None if it was not skipped."""
    reasons = [why for why, n in after.skipped.items() if n > before.skipped.get(why, 0)]
    return reasons[0] if reasons else None


def count_effective_classes(probs: Tensor) -> float:
    """Return exp of the entropy of the mean of probabilities (rows, classes).

    >>> round(count_effective_classes(torch.eye(4)), 4)
    4.0
    """
    mean = probs.double().mean(dim=0)
    return float(torch.special.entr(mean).sum().exp())


@torch.no_grad()
def measure_drift(adapted: Method) -> float:
    """Return how far the trained parameters are from the source's, relative to their norm."""
    moved: Mapping[str, Tensor] = getattr(adapted, "parameters_moved", {})
    source = adapted.initial()["modules"]
    pairs = [
        (parameter, source[key].to(parameter))
        for name, parameter in moved.items()
        if (key := f"model.{name}") in source
    ]
    if not pairs:
        return 0.0
    distance = math.hypot(*(float(torch.linalg.vector_norm(now - old)) for now, old in pairs))
    size = math.hypot(*(float(torch.linalg.vector_norm(old)) for _, old in pairs))
    return distance / size if size else distance


def _describe_estimate(estimate: Estimate | None) -> dict[str, Any]:
    if estimate is None:
        return {}
    values: dict[str, Any] = {}
    for name in ("source", "adapted"):
        own = getattr(estimate, name)
        values[f"{name}_accuracy"] = own.value
        values[f"{name}_accuracy_low"] = own.low
        values[f"{name}_accuracy_high"] = own.high
    return values
