"""Evaluate an adapted model on a stream. No other module reads the labels of a stream."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acclimate.errors import BadInput, NotAdapted, UnsuitableModel
from acclimate.forward import get_logits
from acclimate.functional.entropy import entropy, log_probs
from acclimate.functional.pixels import IGNORE_LABEL, check_masks, resize_maps, to_rows
from acclimate.introspect import try_forward
from acclimate.methods.method import Counts, Method
from acclimate.metrics import Collector, Metric, Record, Result, Sums, check_labels
from acclimate.metrics.batch import count_effective_classes, find_skipped, measure_drift
from acclimate.metrics.cost import Cost, measure_call
from acclimate.metrics.result import check_metric, find_rows, to_probs
from acclimate.streams.batch import Batch

__all__ = ["Collector", "Metric", "Record", "Result", "Sums", "evaluate", "iter_evaluate"]


def iter_evaluate(
    adapted: Method,
    stream: Iterable[Batch],
    metrics: Metric | None = None,
    collector: Collector | None = None,
    reveal_labels: bool = False,
    ignore_label: int = IGNORE_LABEL,
) -> Iterator[Record]:
    """Yield a record for every batch of a stream.

    The method receives only the inputs, on its own device, predicts and learns. Then its prediction
    is compared with the labels. On CUDA the peak memory is measured separately for each call.

    If the model predicts every pixel, labels are masks of the images' size. The logits are resized
    to them (bilinearly), and every labelled pixel counts as one prediction.

    Args:
        adapted: The adapted model.
        stream: Any iterable of batches.
        metrics: A torchmetrics metric or collection. It is updated batch by batch with the samples
            that count (not with probes), so that its `compute()` can be called at any time.
        collector: Collects what records do not contain, and returns the summary:
            `collector.result(records)`.
        reveal_labels: Whether an oracle, which learns from labels, receives them. No other method
            ever does.
        ignore_label: Value of pixels without a label in masks.
    """
    _check_adapted(adapted)
    if metrics is not None:
        check_metric(metrics)
    info = None if adapted.artifact is None else adapted.artifact.info
    known: _Output | None = None if info is None else (info.known_classes, info.is_dense)
    n_rests = 0 if adapted.guard is None else adapted.report().n_rests
    for index, batch in enumerate(stream):
        _check_kind(batch, index)
        # Streams are on the CPU, whichever device the model is on.
        x = batch.x.to(next(adapted.model.parameters(), batch.x).device)
        if known is None:
            known = _try_output(adapted, x, batch.y)
        rows = _check(batch, index, known, ignore_label)
        if batch.reset:
            adapted.reset()
            n_rests = 0
        before = copy.deepcopy(adapted.counts)
        if reveal_labels and adapted.card.is_oracle:
            adapted.reveal(batch.y)
        with nullcontext() if batch.learns else adapted.paused(), measure_call(x.device) as cost:
            output = adapted(x)
        logits = get_logits(output, None if isinstance(output, Tensor) else adapted.logits_at)
        found = (logits.shape[1], logits.dim() == 4)
        if found != known:  # the shape of the logits was not known before
            _check(batch, index, found, ignore_label)
            known = found
        judged = _judge(batch, rows, logits.detach(), ignore_label)
        record = _record(batch, index, judged, cost, before, adapted)
        if adapted.guard is not None:
            reported = adapted.report()
            record = dataclasses.replace(
                record,
                estimate=reported.estimate,
                by_source=reported.answers == "source",
                rested=reported.n_rests > n_rests,
            )
            n_rests = reported.n_rests
        if collector is not None:
            are_pixels = judged.n_images is not None
            collector.update(*judged[:3], record.epoch, record.is_probe, are_pixels)
        if metrics is not None and not record.is_probe and len(judged.y):
            metrics.update(to_probs(judged.logits), judged.y.cpu())
        yield record


def evaluate(
    adapted: Method,
    stream: Iterable[Batch],
    metrics: Metric | None = None,
    keep_predictions: bool = False,
    reveal_labels: bool = False,
    ignore_label: int = IGNORE_LABEL,
) -> Result:
    """Evaluate an adapted model on a stream and return the summary.

    It gives the same number as this plain loop:

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

    Memory does not grow with the samples: one short record per batch and sums by domain are kept.

    Args:
        adapted: The adapted model.
        stream: Any iterable of batches.
        metrics: An additional torchmetrics metric or collection, computed over all samples that
            count and by domain. It is copied. Some metrics store every sample.
        keep_predictions: Whether the records contain the predicted classes.
        reveal_labels: As in `iter_evaluate`.
        ignore_label: As in `iter_evaluate`.
    """
    collector = Collector(metrics)
    more: dict[str, Any] = {"reveal_labels": reveal_labels, "ignore_label": ignore_label}
    records = [
        record if keep_predictions else dataclasses.replace(record, predictions=None)
        for record in iter_evaluate(adapted, stream, collector=collector, **more)
    ]
    if not records:
        text = "Expected a stream with at least one batch, found none. Pass a stream with data."
        raise BadInput("empty_source", text)
    if any(record.n for record in records):
        return collector.result(records)
    if records[0].n_pixel_images is None:
        text = "Expected a stream with samples that count, found none. Check `Batch.counted`."
        raise BadInput("no_samples_measured", text)
    raise BadInput(
        "no_labelled_pixels",
        f"Expected masks with labelled pixels, but every pixel of the stream has the label "
        f"{ignore_label}, which is ignored. Check the masks and ignore_label.",
    )


#: What a model predicts: the number of logits, and whether that is of every pixel.
_Output = tuple[int, bool]
#: The samples of a batch that count: the last ones, or their numbers.
_Rows = slice | Tensor


def _check_adapted(adapted: object) -> None:
    """Refuse a plain model, with the two calls that make an adapted one of it."""
    if not isinstance(adapted, Method):
        found = type(adapted).__name__
        raise NotAdapted(
            "not_adapted",
            f"Expected an adapted model, found a {found}. Pass acclimate.adapt(model, ...); to "
            'measure the model as it is, pass acclimate.adapt(model, "source").',
            found=found,
        )


def _check_kind(batch: object, index: int) -> None:
    """Refuse batches of a DataLoader, with the expression that makes a stream of them."""
    if not isinstance(batch, Batch):
        found = type(batch).__name__
        raise BadInput(
            "wrong_type",
            f"Batch {index}: Expected a stream of acclimate.streams.Batch, found a {found}. Of a "
            'DataLoader, pass (Batch(x, y, "test") for x, y in loader).',
            option="stream",
            found=found,
        )


def _try_output(adapted: Method, x: Tensor, y: object) -> _Output | None:
    """Return what a forward pass shows if labels are masks; None if the model rejects them."""
    if not isinstance(y, Tensor) or y.dim() != 3 or x.dim() != 4 or len(x) == 0:
        return None
    try:
        logits = get_logits(try_forward(adapted.model, x[:2]), adapted.logits_at)
    except (BadInput, UnsuitableModel):
        return None  # the method itself reports what is wrong with the batch
    return logits.shape[1], logits.dim() == 4


def _check(batch: Batch, index: int, known: _Output | None, ignore_label: int) -> _Rows:
    """Validate the labels of a batch and return which of its samples count."""
    n_all = len(batch.x)
    n = n_all if batch.n_new is None else batch.n_new
    where = f"Batch {index} ({batch.domain})"
    if not 1 <= n <= n_all:
        text = f"{where}: Expected 1 to {n_all} samples that count, found {n}."
        if n_all == 0:
            raise BadInput("empty_batch", text)
        raise BadInput("out_of_range", text, option="n_new", found=n)
    if len(batch.domains) not in (0, n_all):
        raise BadInput(
            "count_mismatch",
            f"{where}: Expected {n_all} domain names, one per sample, found {len(batch.domains)}.",
            expected=n_all,
            found=len(batch.domains),
        )
    try:
        rows = _find_rows(batch, n)
        are_masks = isinstance(batch.y, Tensor) and batch.y.dim() > 2 and batch.x.dim() == 4
        if are_masks if known is None else known[1]:
            size = batch.x.shape[2:]
            check_masks(batch.y, (n_all, *size))
            if known is not None:  # labels of samples that do not count may be unknown
                check_masks(batch.y[rows], (len(batch.y[rows]), *size), known[0], ignore_label)
        else:
            check_labels(batch.y, n_all)
            if known is not None:
                check_labels(batch.y[rows], len(batch.y[rows]), known[0])
    except BadInput as error:
        raise BadInput(error.code, f"{where}: {error}", **error.data) from error
    return rows


def _find_rows(batch: Batch, n: int) -> _Rows:
    """Return the samples among the last `n` that count."""
    counted, n_all = batch.counted, len(batch.x)
    if counted is None:
        return slice(n_all - n, n_all)
    if not isinstance(counted, Tensor) or counted.dtype != torch.bool:
        found = counted.dtype if isinstance(counted, Tensor) else type(counted).__name__
        raise BadInput(
            "wrong_type",
            f"Expected a tensor of booleans that marks which samples count, found {found}.",
            option="counted",
            found=str(found).removeprefix("torch."),
        )
    if counted.shape != (n_all,):
        raise BadInput(
            "wrong_shape",
            f"Expected one value per sample in counted, of shape ({n_all},), found "
            f"{tuple(counted.shape)}.",
            found=tuple(counted.shape),
        )
    rows = counted.cpu().nonzero().flatten()
    return rows[rows >= n_all - n]


class _Judged(NamedTuple):
    """The predictions of a batch that count (of samples, or of labelled pixels), and their labels.

    A single name applies to all rows. `predictions` are those of whole samples, as masks if every
    pixel was predicted; then `n_images` is their number.
    """

    logits: Tensor
    y: Tensor
    names: Sequence[str]
    predictions: Tensor
    n_images: int | None = None


def _judge(batch: Batch, rows: _Rows, logits: Tensor, ignore_label: int) -> _Judged:
    """Return the predictions that count with their labels, which are valid."""
    places = rows if isinstance(rows, slice) else rows.to(logits.device)
    logits, y = logits[places], batch.y[rows]
    names: Sequence[str] = (batch.domain,) * len(y)
    if batch.domains:
        numbers = range(len(batch.x))[rows] if isinstance(rows, slice) else rows.tolist()
        names = [batch.domains[number] for number in numbers]
    if logits.dim() == 2:
        return _Judged(logits, y, names, logits.argmax(dim=1).cpu())
    maps = resize_maps(logits, y.shape[1:])
    counts = (y != ignore_label).to(maps.device)
    pixels, labels = to_rows(maps)[counts.flatten()], y.to(maps.device)[counts].long()
    if len(set(names)) == 1:
        names = names[:1]
    else:
        sizes = counts.flatten(1).sum(dim=1).tolist()
        names = [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]
    return _Judged(pixels, labels, names, maps.argmax(dim=1).cpu(), len(y))


def _record(
    batch: Batch,
    index: int,
    judged: _Judged,
    cost: Cost,
    before: Counts,
    adapted: Method,
) -> Record:
    """Compare predictions with labels, and the method's counts before and after the call."""
    after, (logits, y, names) = adapted.counts, judged[:3]
    log_p = log_probs(logits)
    wrong = logits.argmax(dim=1).cpu() != y.cpu()
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
        predictions=judged.predictions,
        by_domain={
            name: (len(wrong[own]), int(wrong[own].sum())) for name, own in find_rows(names).items()
        },
        epoch=batch.epoch,
        learned=batch.learns,
        # A window that is not learned from is not a probe: it contains a new sample.
        is_probe=not batch.learns and batch.n_new is None,
        confidence=_mean(log_p.amax(dim=1).exp()),
        n_forwards=after.forwards - before.forwards,
        n_backwards=after.backwards - before.backwards,
        updated=after.updates > before.updates,
        skipped=find_skipped(before, after),
        restored=after.restored > before.restored,
        peak_memory=cost.peak_memory,
        losses=adapted.losses,
        n_pixel_images=judged.n_images,
        effective_classes=count_effective_classes(log_p.exp()) if len(y) else None,
        drift=measure_drift(adapted),
    )


def _mean(values: Tensor) -> float:
    return float(values.cpu().double().mean())
