"""Measure an adapted model on a stream: the one place where labels are seen."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.entropy import entropy, log_probs
from acclimate.methods.base import Method
from acclimate.streams.batch import Batch
from acclimate.taps import get_logits


@dataclass(frozen=True)
class Record:
    """What happened on one batch.

    Attributes:
        domain: Name of the shift.
        index: Number of the batch in the stream, from 0.
        n: Samples that count.
        n_errors: Wrong predictions among them.
        entropy: Mean entropy of the predictions.
        nll: Mean negative logarithm of the true class's probability.
        ms: Wall time of the call, in milliseconds.
        n_skipped: Batches since the last reset that were predicted without an update.
        n_restored: States restored by the guard since the last reset.
        predictions: The predicted classes.
        by_domain: Samples and errors of each domain in the batch.
        epoch: Which pass over the stream this was, from 1.
        learned: Whether the method was allowed to learn from the batch.
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
    predictions: Tensor
    by_domain: dict[str, tuple[int, int]]
    epoch: int = 1
    learned: bool = True


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
            for name, (n, n_errors) in record.by_domain.items():
                wrong[name] = wrong.get(name, 0) + n_errors
                seen[name] = seen.get(name, 0) + n
        return {name: wrong[name] / seen[name] for name in seen}

    @property
    def error(self) -> float:
        """Mean of the domains' errors; probes, which were not learned from, do not count."""
        learned = Result(tuple(record for record in self.records if record.learned))
        errors = (learned if learned.records else self).error_by_domain.values()
        return sum(errors) / len(errors)

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood over all samples."""
        return sum(record.nll * record.n for record in self.records) / self.n

    def of_epoch(self, epoch: int) -> Result:
        """Return what one pass over the stream gave."""
        return Result(tuple(record for record in self.records if record.epoch == epoch))

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
        with nullcontext() if batch.learns else adapted.paused():
            output = adapted(batch.x)
        ms = 1000 * (time.perf_counter() - start)
        logits = get_logits(output, None if isinstance(output, Tensor) else adapted.logits_at)
        n = len(batch.x) if batch.n_new is None else batch.n_new
        logits, y = logits[-n:], batch.y[-n:].to(logits.device)
        predictions = logits.argmax(dim=1)
        wrong = (predictions != y).cpu()
        names = batch.domains[-n:] or (batch.domain,) * n
        yield Record(
            domain=batch.domain,
            index=index,
            n=n,
            n_errors=int(wrong.sum()),
            entropy=float(entropy(logits).mean()),
            nll=float(-log_probs(logits)[torch.arange(n), y].mean()),
            ms=ms,
            n_skipped=adapted.counts.n_skipped,
            n_restored=adapted.counts.restored,
            predictions=predictions.cpu(),
            by_domain=_count(names, wrong.tolist()),
            epoch=batch.epoch,
            learned=batch.learns,
        )


def _count(names: Sequence[str], wrong: Sequence[bool]) -> dict[str, tuple[int, int]]:
    """Count samples and errors by name."""
    counts: dict[str, tuple[int, int]] = {}
    for name, is_wrong in zip(names, wrong, strict=True):
        n, n_errors = counts.get(name, (0, 0))
        counts[name] = (n + 1, n_errors + int(is_wrong))
    return counts


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
