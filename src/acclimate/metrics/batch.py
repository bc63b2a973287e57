"""What is watched of a stream, batch by batch: the metrics of one batch, their names and meanings.

The command line writes these as JSON lines and to TensorBoard, and the server exports them. Names,
kinds and help texts are defined once, as fields of `BatchMetrics`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from acclimate.functional.entropy import entropy, log_probs
from acclimate.functional.pixels import to_rows
from acclimate.functional.signals import Estimate
from acclimate.metrics.plain import to_plain

if TYPE_CHECKING:
    from acclimate.methods.method import Counts, Method
    from acclimate.metrics.record import Record

#: `counter`: an amount of this batch, to be added up over batches; `gauge`: a value after this
#: batch; `label`: a text.
Kind = Literal["counter", "gauge", "label"]


def _metric(kind: Kind, text: str, **default: Any) -> Any:
    return dataclasses.field(**default, metadata={"kind": kind, "help": text})


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
    effective_classes: float | None = _metric(
        "gauge",
        "Effective number of predicted classes: exp of the entropy of the mean prediction.",
        default=None,
    )
    answered_by: str = _metric("label", "The model that answered: source or adapted.")
    source_accuracy: float | None = _metric(
        "gauge", "Estimated accuracy of the source model.", default=None
    )
    source_accuracy_low: float | None = _metric(
        "gauge", "Lower end of its 95 % interval.", default=None
    )
    source_accuracy_high: float | None = _metric(
        "gauge", "Upper end of its 95 % interval.", default=None
    )
    adapted_accuracy: float | None = _metric(
        "gauge", "Estimated accuracy of the adapted model.", default=None
    )
    adapted_accuracy_low: float | None = _metric(
        "gauge", "Lower end of its 95 % interval.", default=None
    )
    adapted_accuracy_high: float | None = _metric(
        "gauge", "Upper end of its 95 % interval.", default=None
    )
    drift: float | None = _metric(
        "gauge",
        "Distance of the trained parameters from those of the source, relative to their norm.",
        default=None,
    )
    latency_ms: float = _metric("gauge", "Wall time of the call in milliseconds.")

    @classmethod
    def of_call(
        cls,
        adapted: Method,
        logits: Tensor,
        *,
        index: int,
        before: Counts,
        latency_ms: float,
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
        return cls(
            index=index,
            samples=len(logits),
            updates=counts.updates - before.updates,
            skipped=find_skipped(before, counts),
            restored=counts.restored - before.restored,
            **describe_logits(logits),
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
        found = {name: getattr(self, name) for name in METRICS}
        return {
            name: float(value)
            for name, value in found.items()
            if METRICS[name].kind != "label" and value is not None and math.isfinite(value)
        }


@dataclass(frozen=True)
class MetricInfo:
    """What a metric is.

    Attributes:
        kind: `counter`, `gauge` or `label`.
        help: One sentence.
    """

    kind: Kind
    help: str


#: All metrics by name.
METRICS: Mapping[str, MetricInfo] = {
    field.name: MetricInfo(field.metadata["kind"], field.metadata["help"])
    for field in dataclasses.fields(BatchMetrics)
}


def find_skipped(before: Counts, after: Counts) -> str | None:
    """Return why a batch was predicted without an update; None if it was not skipped."""
    reasons = [why for why, n in after.skipped.items() if n > before.skipped.get(why, 0)]
    return reasons[0] if reasons else None


@torch.no_grad()
def describe_logits(logits: Tensor) -> dict[str, float]:
    """Return entropy, confidence and effective number of classes of predictions."""
    rows = to_rows(logits.detach()) if logits.dim() == 4 else logits.detach()
    probs = log_probs(rows).exp()
    return {
        "entropy": float(entropy(rows).double().mean()),
        "confidence": float(probs.amax(dim=1).double().mean()),
        "effective_classes": count_effective_classes(probs),
    }


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
