"""Measure an adapted model on a stream: the one place where labels are seen."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from torch import Tensor

from acclimate.errors import BadInput, UnsuitableModel
from acclimate.functional.entropy import entropy, log_probs
from acclimate.functional.pixels import IGNORE_LABEL, check_masks, resize_maps, to_rows
from acclimate.measures import Measures, Metric, Record, Result, Tally, check_labels
from acclimate.measures.machine import Cost, measure_call
from acclimate.measures.tally import check_metric, find_rows, to_probs
from acclimate.methods.base import Method
from acclimate.methods.state import Counts
from acclimate.streams.batch import Batch
from acclimate.taps import get_logits, try_forward

__all__ = ["Measures", "Metric", "Record", "Result", "Tally", "evaluate", "iter_evaluate"]


def iter_evaluate(
    adapted: Method,
    stream: Iterable[Batch],
    metrics: Metric | None = None,
    tally: Tally | None = None,
    reveal_labels: bool = False,
    ignore_label: int = IGNORE_LABEL,
) -> Iterator[Record]:
    """Yield a record for every batch of a stream.

    The method gets the inputs only, on its own device, predicts and learns; then its prediction
    meets the labels. On CUDA the peak of memory is measured anew for each call.

    Where every pixel is predicted, labels are masks of the images' size. The logits are resized to
    them (bilinearly), and every labelled pixel counts as one prediction.

    Args:
        adapted: The adapted model.
        stream: Any iterable of batches.
        metrics: A torchmetrics metric or collection, updated batch by batch with the samples that
            count (not with probes), so that its `compute()` can be asked at any time.
        tally: Takes in what records do not hold, and gives the summary: `tally.result(records)`.
        reveal_labels: Whether an oracle, which learns from labels, is shown them. No other method
            ever is.
        ignore_label: What masks hold where there is no label.

    Raises:
        BadInput: Labels that do not fit the inputs or the logits.
    """
    if metrics is not None:
        check_metric(metrics)
    known = _Kind.of(adapted)
    for index, batch in enumerate(stream):
        # Streams are made on the CPU, whatever the model is on.
        x = batch.x.to(next(adapted.model.parameters(), batch.x).device)
        if known is None:
            known = _Kind.tried(adapted, x, batch.y)
        n = _check(batch, index, known, ignore_label)
        if batch.reset:
            adapted.reset()
        before = copy.deepcopy(adapted.counts)
        if reveal_labels and adapted.is_oracle:
            adapted.reveal(batch.y)
        with nullcontext() if batch.learns else adapted.paused(), measure_call(x.device) as cost:
            output = adapted(x)
        logits = get_logits(output, None if isinstance(output, Tensor) else adapted.logits_at)
        found = _Kind(logits.shape[1], logits.dim() == 4)
        if found != known:  # which nobody could tell before
            _check(batch, index, found, ignore_label)
            known = found
        judged = _judge(batch, n, logits.detach(), ignore_label)
        record = _record(batch, index, judged, cost, (before, adapted.counts))
        record = dataclasses.replace(record, losses=adapted.losses)
        if tally is not None:
            tally.update(*judged.rows, record.epoch, record.is_probe, judged.n_images is not None)
        if metrics is not None and not record.is_probe:
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
        ignore_label: What masks hold where there is no label; see `iter_evaluate`.

    Raises:
        BadInput: No batch, or labels that do not fit the inputs or the logits.
    """
    tally = Tally(metrics)
    found = iter_evaluate(
        adapted, stream, tally=tally, reveal_labels=reveal_labels, ignore_label=ignore_label
    )
    records = [
        record if keep_predictions else dataclasses.replace(record, predictions=None)
        for record in found
    ]
    if not records:
        raise BadInput(
            "empty_source",
            "the stream ended before its first batch: there is nothing to measure.",
        )
    if not any(record.n for record in records):
        raise BadInput(
            "no_labelled_pixels",
            f"every pixel of the stream has the label {ignore_label}, which is left out: there is "
            "nothing to measure. Check the masks, and ignore_label.",
        )
    return tally.result(records)


@dataclass(frozen=True)
class _Kind:
    """What a model predicts.

    Attributes:
        n_classes: Number of logits.
        is_dense: Whether every pixel has them.
    """

    n_classes: int
    is_dense: bool

    @classmethod
    def of(cls, adapted: Method) -> _Kind | None:
        """Return what the artifact says; None if there is none."""
        if adapted.artifact is None:
            return None
        return cls(adapted.artifact.anatomy.n_classes, adapted.artifact.anatomy.is_dense)

    @classmethod
    def tried(cls, adapted: Method, x: Tensor, y: object) -> _Kind | None:
        """Return what a forward shows where labels are masks; None if the model takes no such."""
        if not isinstance(y, Tensor) or y.dim() != 3 or x.dim() != 4 or len(x) == 0:
            return None
        try:
            logits = get_logits(try_forward(adapted.model, x[:2]), adapted.logits_at)
        except (BadInput, UnsuitableModel):
            return None  # the method itself says what is wrong with the batch
        return cls(logits.shape[1], logits.dim() == 4)


def _check(batch: Batch, index: int, known: _Kind | None, ignore_label: int) -> int:
    """Return how many samples count, having looked at what is known of their labels.

    Raises:
        BadInput: They do not fit; batch and domain are named.
    """
    n_all = len(batch.x)
    n = n_all if batch.n_new is None else batch.n_new
    where = f"batch {index} ({batch.domain})"
    if not 1 <= n <= n_all:
        text = f"{where}: expected 1 to {n_all} samples that count, found {n}."
        if n_all == 0:
            raise BadInput("empty_batch", text)
        raise BadInput("out_of_range", text, option="n_new", found=n)
    if len(batch.domains) not in (0, n_all):
        raise BadInput(
            "count_mismatch",
            f"{where}: expected the domain of each of {n_all} samples, found {len(batch.domains)}.",
            expected=n_all,
            found=len(batch.domains),
        )
    try:
        _check_labels(batch, n_all, n, known, ignore_label)
    except BadInput as error:
        raise BadInput(error.code, f"{where}: {error}", **error.data) from error
    return n


def _check_labels(batch: Batch, n_all: int, n: int, known: _Kind | None, ignored: int) -> None:
    are_masks = isinstance(batch.y, Tensor) and batch.y.dim() > 2 and batch.x.dim() == 4
    if are_masks if known is None else known.is_dense:
        check_masks(batch.y, (n_all, *batch.x.shape[2:]))
        if known is not None:
            # Those that do not count may be unknown.
            check_masks(batch.y[-n:], (n, *batch.x.shape[2:]), known.n_classes, ignored)
        return
    check_labels(batch.y, n_all)
    if known is not None:
        check_labels(batch.y[-n:], n, known.n_classes)


@dataclass(frozen=True)
class _Judged:
    """The predictions of a batch that count, and their labels.

    Attributes:
        logits: One a row, (rows, K): of samples, or of labelled pixels.
        y: Their labels.
        names: Domains of the rows; one name stands for all of them.
        predictions: The predicted classes of all samples, or of all pixels as masks.
        n_images: Images that count, if every pixel was predicted; else None.
    """

    logits: Tensor
    y: Tensor
    names: Sequence[str]
    predictions: Tensor
    n_images: int | None = None

    @property
    def rows(self) -> tuple[Tensor, Tensor, Sequence[str]]:
        """Logits, labels and domains."""
        return self.logits, self.y, self.names


def _judge(batch: Batch, n: int, logits: Tensor, ignore_label: int) -> _Judged:
    """Put the predictions that count beside their labels, which were checked."""
    logits, y = logits[-n:], batch.y[-n:]
    names: Sequence[str] = batch.domains[-n:] or (batch.domain,) * n
    if logits.dim() == 2:
        return _Judged(logits, y, names, logits.argmax(dim=1).cpu())
    maps = resize_maps(logits, y.shape[1:])
    counts = (y != ignore_label).to(maps.device)
    rows, labels = to_rows(maps)[counts.flatten()], y.to(maps.device)[counts].long()
    if len(set(names)) == 1:
        names = names[:1]
    else:
        sizes = counts.flatten(1).sum(dim=1).tolist()
        names = [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]
    return _Judged(rows, labels, names, maps.argmax(dim=1).cpu(), n)


def _record(
    batch: Batch, index: int, judged: _Judged, cost: Cost, counts: tuple[Counts, Counts]
) -> Record:
    """Compare predictions with labels, and the method's counts after the call with those before."""
    before, after = counts
    logits, y, names = judged.rows
    log_p = log_probs(logits)
    wrong = logits.argmax(dim=1).cpu() != y.cpu()
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
        predictions=judged.predictions,
        by_domain={
            name: (len(wrong[own]), int(wrong[own].sum())) for name, own in find_rows(names).items()
        },
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
        n_pixel_images=judged.n_images,
    )


def _mean(values: Tensor) -> float:
    return float(values.cpu().double().mean())
