"""The metrics of a server for Prometheus."""

from __future__ import annotations

from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from acclimate.metrics.batch import METRICS, BatchMetrics

#: Bounds of the latency of requests, in seconds.
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Telemetry:
    """Counts requests and answers, and keeps the metrics of the last learned batch by stream.

    The metrics of batches have the names of `acclimate.metrics.BatchMetrics`, after `acclimate_`.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter(
            "acclimate_requests", "Requests for predictions, by status.", ["status"]
        )
        text = "Time from a request for predictions to its answer."
        self.seconds = histogram("acclimate_request_seconds", text, buckets=_SECONDS)
        text = "Images that were answered together."
        self.batch_size = histogram("acclimate_answer_batch_size", text, buckets=_SIZES)
        text = "Answered images, by model."
        self.answered = counter("acclimate_answered", text, ["stream", "by"])
        text = "Answered images that were left out because learning did not keep up."
        self.not_learned = counter("acclimate_not_learned", text, ["stream"])
        text = "Batches without an update."
        self.skipped = counter("acclimate_skipped", text, ["stream", "reason"])
        text = "Images that wait for learning."
        self.waiting = gauge("acclimate_learn_queue", text, ["stream"])
        self._of_batches: dict[str, Any] = {
            name: (counter if info.kind == "counter" else gauge)(
                f"acclimate_{name}", info.help, ["stream"]
            )
            for name, info in METRICS.items()
            if info.kind != "label"
        }

    def observe(self, stream: str, metrics: BatchMetrics) -> None:
        """Add a batch that was learned from."""
        for name, value in metrics.numbers().items():
            metric = self._of_batches[name].labels(stream)
            if METRICS[name].kind == "counter":
                metric.inc(value)
            else:
                metric.set(value)
        if metrics.skipped is not None:
            self.skipped.labels(stream, metrics.skipped).inc()

    def note_answers(self, stream: str, n: int, by: str) -> None:
        """Add a batch that was answered."""
        self.batch_size.observe(n)
        self.answered.labels(stream, by).inc(n)

    def note_left_out(self, stream: str, n: int) -> None:
        """Add images that will not be learned from."""
        self.not_learned.labels(stream).inc(n)

    def write(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self.registry)
