"""Numbers about what an adapted model does, batch by batch, for any logger."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from acclimate.errors import check_at_least
from acclimate.methods.method import Counts, Method
from acclimate.metrics.batch import BatchMetrics

#: Takes the number of the batch, and values by name.
Write = Callable[[int, Mapping[str, float]], object]


def watch(adapted: Method, write: Write, *, every: int = 1, prefix: str = "") -> RemovableHandle:
    """Write numbers after every batch: updates, entropy, confidence, drift, and more.

    Names and meanings are those of `acclimate.metrics.BatchMetrics`. With a guard, there are also
    the estimated accuracies, `by_source` (1 if the source model answered), `guard_rate` (share of
    the learning rate in use) and `guard_resting` (1 if learning is stopped). Labels are not needed.

    Args:
        adapted: The adapted model.
        write: Called with the number of the batch, from 0, and the values.
        every: Write only every so many batches. Samples, updates and restored states are those
            since the last time; everything else is that of the last batch.
        prefix: Put before each name, such as `"camera-1/"`.

    Returns:
        A handle; `handle.remove()` ends it.

    Example:
        >>> import acclimate
        >>> from acclimate.testing.models import tiny_batches, tiny_model
        >>> adapted = acclimate.adapt(tiny_model("batch_norm"), "tent")
        >>> handle = watch(adapted, lambda step, values: print(step, values["updates"]), every=2)
        >>> for x, _ in tiny_batches(4):
        ...     logits = adapted(x)
        1 2.0
        3 2.0
    """
    check_at_least("every", every, 1)
    return adapted.on_batch(_Watcher(adapted, write, every, prefix))


class _Watcher:
    """An observer of batches."""

    def __init__(self, adapted: Method, write: Write, every: int, prefix: str) -> None:
        self.write, self.every, self.prefix = write, every, prefix
        self.n_batches = self.n_samples = 0
        self.before = copy.deepcopy(adapted.counts)

    def __call__(self, adapted: Method, logits: Tensor) -> None:
        if adapted.counts.batches < self.before.batches:  # it was reset
            self.before = Counts()
        self.n_batches += 1
        self.n_samples += len(logits)
        if self.n_batches % self.every:
            return
        step = self.n_batches - 1
        metrics = BatchMetrics.of_call(
            adapted, logits, index=step, before=self.before, latency_ms=math.nan
        )
        metrics = dataclasses.replace(metrics, samples=self.n_samples)
        self.before, self.n_samples = copy.deepcopy(adapted.counts), 0
        values = {**metrics.numbers(), **_describe_guard(adapted)}
        self.write(step, {self.prefix + name: value for name, value in values.items()})


def _describe_guard(adapted: Method) -> dict[str, float]:
    if adapted.guard is None:
        return {}
    report = adapted.report()
    return {
        "by_source": float(report.answers == "source"),
        "guard_rate": report.rate,
        "guard_resting": float(report.is_resting),
    }


def describe_setting(adapted: Method) -> dict[str, Any]:
    """Return what was adapted and how, as plain values by name."""
    terms = "+".join(term.name for term in adapted.added_terms)
    options = {f"option/{name}": value for name, value in adapted.config.to_dict().items()}
    guard = {} if adapted.guard is None else adapted.guard.to_dict()
    return {
        "method": adapted.name,
        **({"terms": terms} if terms else {}),
        "model_sha256": adapted.source_sha256,
        **options,
        **{f"guard/{name}": value for name, value in guard.items()},
    }
