"""Measure an adapted model on a stream: the one place where labels are seen."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.entropy import entropy, log_probs
from acclimate.measures import Measures, Metric, Record, Result, Tally, check_labels
from acclimate.measures.machine import Cost, measure_call
from acclimate.measures.tally import check_metric, to_probs
from acclimate.methods.base import Method
from acclimate.methods.state import Counts
from acclimate.streams.batch import Batch
from acclimate.taps import get_logits

__all__ = ["Measures", "Metric", "Record", "Result", "Tally", "evaluate", "iter_evaluate"]


def iter_evaluate(
    adapted: Method,
    stream: Iterable[Batch],
    metrics: Metric | None = None,
    tally: Tally | None = None,
    reveal_labels: bool = False,
) -> Iterator[Record]:
    """Yield a record for every batch of a stream.

    The method gets the inputs only, on its own device, predicts and learns; then its prediction
    meets the labels. On CUDA the peak of memory is measured anew for each call.

    Args:
        adapted: The adapted model.
        stream: Any iterable of batches.
        metrics: A torchmetrics metric or collection, updated batch by batch with the samples that
            count (not with probes), so that its `compute()` can be asked at any time.
        tally: Takes in what records do not hold, and gives the summary: `tally.result(records)`.
        reveal_labels: Whether an oracle, which learns from labels, is shown them. No other method
            ever is.

    Raises:
        BadInput: Labels that do not fit the inputs or the logits.
    """
    if metrics is not None:
        check_metric(metrics)
    for index, batch in enumerate(stream):
        n = _check(batch, index)
        if batch.reset:
            adapted.reset()
        # Streams are made on the CPU, whatever the model is on.
        x = batch.x.to(next(adapted.model.parameters(), batch.x).device)
        before = copy.deepcopy(adapted.counts)
        if reveal_labels and adapted.is_oracle:
            adapted.reveal(batch.y)
        with nullcontext() if batch.learns else adapted.paused(), measure_call(x.device) as cost:
            output = adapted(x)
        logits = get_logits(output, None if isinstance(output, Tensor) else adapted.logits_at)
        logits, y = logits.detach()[-n:], batch.y[-n:]
        check_labels(y, n, logits.shape[1])
        names = batch.domains[-n:] or (batch.domain,) * n
        record = _record(batch, index, logits, y, names, cost, (before, adapted.counts))
        record = dataclasses.replace(record, losses=adapted.losses)
        if tally is not None:
            tally.update(logits, y, names, record.epoch, record.is_probe)
        if metrics is not None and not record.is_probe:
            metrics.update(to_probs(logits), y.cpu())
        yield record


def evaluate(
    adapted: Method,
    stream: Iterable[Batch],
    metrics: Metric | None = None,
    keep_predictions: bool = False,
    reveal_labels: bool = False,
) -> Result:
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

    Memory does not grow with the samples: a short record a batch is kept, and sums by domain.

    Args:
        adapted: The adapted model.
        stream: Any iterable of batches.
        metrics: A torchmetrics metric or collection to compute besides, over all samples that
            count and by domain; it is copied. Some keep every sample they see.
        keep_predictions: Whether the records keep the predicted classes.
        reveal_labels: Whether an oracle, which learns from labels, is shown them. No other method
            ever is.

    Raises:
        BadInput: No batch, or labels that do not fit the inputs or the logits.
    """
    tally = Tally(metrics)
    records = [
        record if keep_predictions else dataclasses.replace(record, predictions=None)
        for record in iter_evaluate(adapted, stream, tally=tally, reveal_labels=reveal_labels)
    ]
    if not records:
        raise BadInput("the stream ended before its first batch: there is nothing to measure.")
    return tally.result(records)


def _check(batch: Batch, index: int) -> int:
    """Return how many samples count, having looked at what can be known before the method runs."""
    n_all = len(batch.x)
    n = n_all if batch.n_new is None else batch.n_new
    where = f"batch {index} ({batch.domain})"
    if not 1 <= n <= n_all:
        raise BadInput(f"{where}: expected 1 to {n_all} samples that count, found {n}.")
    if len(batch.domains) not in (0, n_all):
        raise BadInput(
            f"{where}: expected the domain of each of {n_all} samples, found {len(batch.domains)}."
        )
    check_labels(batch.y, n_all)
    return n


def _record(
    batch: Batch,
    index: int,
    logits: Tensor,
    y: Tensor,
    names: Sequence[str],
    cost: Cost,
    counts: tuple[Counts, Counts],
) -> Record:
    """Compare predictions with labels, and the method's counts after the call with those before."""
    before, after = counts
    log_p = log_probs(logits)
    predictions = logits.argmax(dim=1).cpu()
    wrong = predictions != y.cpu()
    skipped = [why for why, n in after.skipped.items() if n > before.skipped.get(why, 0)]
    return Record(
        domain=batch.domain,
        index=index,
        n=len(y),
        n_errors=int(wrong.sum()),
        entropy=_mean(entropy(logits)),
        nll=-_mean(log_p.gather(1, y.to(logits.device).long()[:, None])),
        ms=cost.ms,
        n_skipped=after.n_skipped,
        n_restored=after.restored,
        predictions=predictions,
        by_domain=_count(names, wrong.tolist()),
        epoch=batch.epoch,
        learned=batch.learns,
        # In a window that is not learned from there is a new sample all the same.
        is_probe=not batch.learns and batch.n_new is None,
        confidence=_mean(log_p.amax(dim=1).exp()),
        n_forwards=after.forwards - before.forwards,
        n_backwards=after.backwards - before.backwards,
        updated=after.updates > before.updates,
        skipped=skipped[0] if skipped else None,
        restored=after.restored > before.restored,
        peak_memory=cost.peak_memory,
    )


def _mean(values: Tensor) -> float:
    return float(values.cpu().double().mean())


def _count(names: Sequence[str], wrong: Sequence[bool]) -> dict[str, tuple[int, int]]:
    """Count samples and errors by name."""
    counts: dict[str, tuple[int, int]] = {}
    for name, is_wrong in zip(names, wrong, strict=True):
        n, n_errors = counts.get(name, (0, 0))
        counts[name] = (n + 1, n_errors + int(is_wrong))
    return counts
