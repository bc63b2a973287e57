"""Measure an adapted model on a stream: the one place where labels are seen."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.entropy import entropy
from acclimate.methods.base import Method
from acclimate.streams.batch import Batch
from acclimate.taps import get_logits


@dataclass(frozen=True)
class Record:
    """What happened on one batch.

    Attributes:
        domain: Name of the shift.
        index: Number of the batch in the stream, from 0.
        n: Samples.
        n_errors: Wrong predictions.
        entropy: Mean entropy of the predictions.
        ms: Wall time of the call, in milliseconds.
        n_skipped: Batches since the last reset that were predicted without an update.
        n_restored: States restored by the guard since the last reset.
        predictions: The predicted classes.
    """

    domain: str
    index: int
    n: int
    n_errors: int
    entropy: float
    ms: float
    n_skipped: int
    n_restored: int
    predictions: Tensor


@dataclass(frozen=True)
class Result:
    """The summary of one stream.

    Attributes:
        records: One a batch.
    """

    records: tuple[Record, ...]

    @property
    def n(self) -> int:
        """Samples seen."""
        return sum(record.n for record in self.records)

    @property
    def error_by_domain(self) -> dict[str, float]:
        """Share of wrong predictions in each domain, in the order in which they came."""
        wrong: dict[str, int] = {}
        seen: dict[str, int] = {}
        for record in self.records:
            wrong[record.domain] = wrong.get(record.domain, 0) + record.n_errors
            seen[record.domain] = seen.get(record.domain, 0) + record.n
        return {name: wrong[name] / seen[name] for name in seen}

    @property
    def error(self) -> float:
        """Mean of the domains' errors."""
        errors = self.error_by_domain.values()
        return sum(errors) / len(errors)

    @property
    def ms_per_batch(self) -> float:
        """Median wall time of a call, in milliseconds."""
        times = sorted(record.ms for record in self.records)
        return times[len(times) // 2]

    @property
    def images_per_second(self) -> float:
        """Samples over the time spent in calls."""
        return 1000 * self.n / sum(record.ms for record in self.records)


def iter_evaluate(adapted: Method, stream: Iterable[Batch]) -> Iterator[Record]:
    """Yield a record for every batch of a stream.

    The method gets the inputs only, predicts and learns; then its prediction meets the labels.
    """
    for index, batch in enumerate(stream):
        if batch.reset:
            adapted.reset()
        start = time.perf_counter()
        output = adapted(batch.x)
        ms = 1000 * (time.perf_counter() - start)
        logits = get_logits(output, None if isinstance(output, Tensor) else adapted.logits_at)
        predictions = logits.argmax(dim=1)
        yield Record(
            domain=batch.domain,
            index=index,
            n=len(batch.x),
            n_errors=int((predictions != batch.y.to(predictions.device)).sum()),
            entropy=float(entropy(logits).mean()),
            ms=ms,
            n_skipped=adapted.counts.n_skipped,
            n_restored=adapted.counts.restored,
            predictions=predictions.cpu(),
        )


def evaluate(adapted: Method, stream: Iterable[Batch]) -> Result:
    """Run a stream and sum up.

    The plain loop this replaces, with the same number:

    >>> import torch, acclimate
    >>> from acclimate.streams import Domain, reset_each
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    >>> x, y = torch.rand(20, 3, 2, 2), torch.randint(3, (20,))
    >>> adapted = acclimate.adapt(model, "source")
    >>> stream = list(reset_each([Domain("any", x, y)], batch_size=8))
    >>> wrong = 0
    >>> for batch in stream:
    ...     wrong += int((adapted(batch.x).argmax(dim=1) != batch.y).sum())
    >>> evaluate(adapted, stream).error == wrong / 20
    True
    """
    records = tuple(iter_evaluate(adapted, stream))
    if not records:
        raise BadInput("the stream ended before its first batch: there is nothing to measure.")
    return Result(records)
