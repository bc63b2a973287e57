"""The metrics of a server for Prometheus."""

from __future__ import annotations

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
        registry = self.registry
        self.requests = Counter(
            "acclimate_requests",
            "Requests for predictions, by status.",
            ["status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "acclimate_request_seconds",
            "Time from a request for predictions to its answer.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.batch_size = Histogram(
            "acclimate_answer_batch_size",
            "Images that were answered together.",
            buckets=_SIZES,
            registry=registry,
        )
        self.answered = Counter(
            "acclimate_answered", "Answered images, by model.", ["stream", "by"], registry=registry
        )
        self.not_learned = Counter(
            "acclimate_not_learned",
            "Answered images that were left out because learning did not keep up.",
            ["stream"],
            registry=registry,
        )
        self.skipped = Counter(
            "acclimate_skipped",
            "Batches without an update.",
            ["stream", "reason"],
            registry=registry,
        )
        self.waiting = Gauge(
            "acclimate_learn_queue", "Images that wait for learning.", ["stream"], registry=registry
        )
        made = {"counter": Counter, "gauge": Gauge}
        self._of_batches = {
            name: made[info.kind](f"acclimate_{name}", info.help, ["stream"], registry=registry)
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
