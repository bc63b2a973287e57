"""The summary of a stream, from the records of its batches and the sums over its samples."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from operator import add
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.entropy import log_probs
from acclimate.metrics.batch import Record
from acclimate.metrics.sums import Array, PixelSums, Sums, to_plain

Name = TypeVar("Name", bound=Hashable)
Default = TypeVar("Default", float, None)

_SUMMARY = (
    *("n", "error", "error_by_domain", "nll", "entropy", "confidence"),
    *("ms_per_batch", "images_per_second", "forwards_per_batch", "backwards_per_batch"),
    *("peak_memory", "n_skipped", "skipped", "n_restored"),
    *("estimated_error", "estimated_error_by_domain", "estimated_source_error"),
    *("by_source", "n_rests"),
)
_OF_SUMS = ("ece", "adaptive_ece", "error_by_class", "histogram")
_OF_PIXELS = ("miou", "miou_by_domain", "pixel_accuracy", "iou_by_class", "confusion")


class Group(NamedTuple):
    """Samples that are summed together: those of one domain in one pass, or of its probes."""

    epoch: int
    domain: str
    is_probe: bool = False


@dataclass(frozen=True)
class Probe:
    """A measurement of what the model still knows: batches that are predicted without learning.

    Attributes:
        domain: Name of the domain in the stream.
        index: Number of its first batch in the stream.
        n: Number of samples.
        n_errors: Number of wrong predictions among them.
    """

    domain: str
    index: int
    n: int
    n_errors: int

    @property
    def error(self) -> float:
        """Share of wrong predictions."""
        return self.n_errors / self.n


@dataclass(frozen=True)
class Result:
    """The summary of one stream.

    Probes count only in `n`, `error_by_domain` and `probes`, unless all batches are probes. Errors
    are shares from 0 to 1.

    Attributes:
        records: One record per batch.
        sums: Sums over samples; properties that need them raise an error without them.
        extra: Values of additional metrics over all samples that count, by name.
        extra_by_domain: The same for each domain.
    """

    records: tuple[Record, ...]
    sums: Mapping[Group, Sums] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    extra_by_domain: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = sum(own.n for own in self.sums.values())
        if self.sums and n != self.n:
            raise BadInput(
                "count_mismatch",
                f"Expected sums over the {self.n} samples in the records, found sums over {n}. "
                "Pass records and sums of the same run.",
                expected=self.n,
                found=n,
            )

    @property
    def n(self) -> int:
        """Number of predictions: one per sample, or one per labelled pixel."""
        return sum(record.n for record in self.records)

    @property
    def n_images(self) -> int:
        """Number of samples, independently of the predictions per sample."""
        return sum(record.n_images for record in self.records)

    @property
    def counted(self) -> tuple[Record, ...]:
        """The records that count: all except probes."""
        return tuple(record for record in self.records if not record.is_probe) or self.records

    @property
    def error_by_domain(self) -> dict[str, float]:
        """Share of wrong predictions in each domain, in order of occurrence."""
        return find_errors(self.records)

    @property
    def error(self) -> float:
        """Mean error over domains, without probes."""
        errors = find_errors(self.counted).values()
        return sum(errors) / len(errors)

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood over samples."""
        return self._mean(lambda record: record.nll)

    @property
    def entropy(self) -> float:
        """Mean entropy of the predictions over samples."""
        return self._mean(lambda record: record.entropy)

    @property
    def confidence(self) -> float:
        """Mean probability of the predicted class over samples."""
        return self._mean(lambda record: record.confidence)

    @property
    def whole(self) -> Sums:
        """The sums over all samples that count.

        Raises:
            BadInput: The result has only records.
        """
        if not self.sums:
            raise BadInput(
                "not_recorded",
                "Expected sums over samples, found only records, which do not contain calibration "
                "and classes. Use evaluate(...), or iter_evaluate with a Collector.",
                what="measures",
            )
        measured = [own for group, own in self.sums.items() if not group.is_probe]
        return reduce(add, measured or self.sums.values())

    @property
    def sums_by_domain(self) -> dict[str, Sums]:
        """The sums of each domain over all passes, including probes."""
        return merge((group.domain, own) for group, own in self.sums.items())

    @property
    def pixels(self) -> PixelSums:
        """The sums over all pixels that count.

        Raises:
            BadInput: Whole images were predicted, or the result has only records.
        """
        whole = self.whole
        if not isinstance(whole, PixelSums):
            raise BadInput(
                "not_recorded",
                "Expected dense predictions, found predictions of whole images, which have no "
                "intersection over union. Use error instead.",
                what="pixels",
            )
        return whole

    @property
    def miou(self) -> float:
        """Mean intersection over union of the classes that occur, over all pixels that count."""
        return self.pixels.miou

    @property
    def iou_by_class(self) -> dict[int, float]:
        """Intersection over union of each class that occurs in truth or predictions."""
        return self.pixels.iou_by_class

    @property
    def pixel_accuracy(self) -> float:
        """Share of correctly predicted pixels, over all pixels that count."""
        return self.pixels.pixel_accuracy

    @property
    def confusion(self) -> Array:
        """Number of pixels of each true class (row) and predicted class (column)."""
        return self.pixels.confusion

    @property
    def miou_by_domain(self) -> dict[str, float]:
        """Mean intersection over union in each domain that has labelled pixels."""
        found = self.sums_by_domain.items()
        return {name: m.miou for name, m in found if isinstance(m, PixelSums) and m.n}

    @property
    def error_by_class(self) -> dict[int, float]:
        """Share of wrong predictions in each true class that occurred."""
        return self.whole.error_by_class

    @property
    def histogram(self) -> tuple[int, ...]:
        """Number of predictions of each class."""
        return self.whole.histogram

    @property
    def class_shares(self) -> tuple[float, ...]:
        """Share of each class among the predictions."""
        return self.whole.class_shares

    @property
    def ece(self) -> float:
        """Expected calibration error over 15 bins of equal width, over all samples."""
        return self.whole.ece

    @property
    def adaptive_ece(self) -> float:
        """Calibration error over 15 bins with equally many samples, over all samples."""
        return self.whole.adaptive_ece

    @property
    def probes(self) -> tuple[Probe, ...]:
        """The probes in order; see `streams.with_clean_probe`."""
        found = []
        for (is_probe, domain), batches in groupby(self.records, lambda r: (r.is_probe, r.domain)):
            if is_probe:
                own = list(batches)
                n, n_errors = sum(r.n for r in own), sum(r.n_errors for r in own)
                found.append(Probe(domain, own[0].index, n, n_errors))
        return tuple(found)

    @property
    def forgetting(self) -> float:
        """Error of the last probe minus that of the first.

        Raises:
            BadInput: There are fewer than two probes.
        """
        probes = self.probes
        if len(probes) < 2:
            raise BadInput(
                "not_recorded",
                f"Expected at least two probes to compare, found {len(probes)}. Evaluate a stream "
                "of several domains with streams.with_clean_probe(stream, clean).",
                what="probes",
            )
        return probes[-1].error - probes[0].error

    @property
    def ms_per_batch(self) -> float:
        """Median wall time of a call in milliseconds."""
        times = sorted(record.ms for record in self.counted)
        return times[len(times) // 2]

    @property
    def images_per_second(self) -> float:
        """Number of samples divided by the time spent in calls."""
        counted = self.counted
        n = sum(record.n_images for record in counted)
        return 1000 * n / sum(record.ms for record in counted)

    @property
    def forwards_per_batch(self) -> float:
        """Mean number of forward passes per batch that was learned from."""
        return _mean_of([record.n_forwards for record in self.records if record.learned], math.nan)

    @property
    def backwards_per_batch(self) -> float:
        """Mean number of backward passes per batch that was learned from."""
        return _mean_of([record.n_backwards for record in self.records if record.learned], math.nan)

    @property
    def peak_memory(self) -> int | None:
        """Largest peak memory of any batch in bytes; see `Record.peak_memory`."""
        return max((r.peak_memory for r in self.records if r.peak_memory is not None), default=None)

    @property
    def skipped(self) -> dict[str, int]:
        """Number of batches that were predicted without an update, by reason, over all resets."""
        reasons = [record.skipped for record in self.records if record.skipped is not None]
        return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}

    @property
    def n_skipped(self) -> int:
        """Number of batches that were predicted without an update, over all resets."""
        return sum(self.skipped.values())

    @property
    def n_restored(self) -> int:
        """Number of states that the guard or the method restored, over all resets."""
        return sum(record.restored for record in self.records)

    @property
    def has_guard(self) -> bool:
        """Whether the model was adapted with a guard."""
        return any(record.by_source is not None for record in self.records)

    @property
    def estimated_error_by_domain(self) -> dict[str, float]:
        """Error in each domain that the guard estimated without labels, of the answers.

        The mean, over the batches with an estimate, of the estimate on the guard's window, of the
        source model where that answered and of the adapted model elsewhere. Batches of several
        domains count for each of them by its samples.
        """
        return _estimate_errors(self.records, lambda record: record.estimated_accuracy)

    @property
    def estimated_error(self) -> float | None:
        """Mean of `estimated_error_by_domain`, without probes; None if nothing was estimated.

        It estimates `error`, except for the first batches, which have no estimate.
        """
        errors = _estimate_errors(self.counted, lambda record: record.estimated_accuracy)
        return _mean_of(errors.values(), None)

    @property
    def estimated_source_error(self) -> float | None:
        """The same of the source model, whichever model answered."""
        errors = _estimate_errors(
            self.counted,
            lambda record: None if record.estimate is None else record.estimate.source.value,
        )
        return _mean_of(errors.values(), None)

    @property
    def by_source(self) -> float | None:
        """Share of samples that the source model answered; None without a guard."""
        if not self.has_guard:
            return None
        n = sum(record.n_images for record in self.counted)
        n_by_source = sum(record.n_images for record in self.counted if record.by_source)
        return n_by_source / n if n else None

    @property
    def n_rests(self) -> int | None:
        """Number of times that the guard stopped learning, over all resets; None without one."""
        return sum(bool(record.rested) for record in self.records) if self.has_guard else None

    def of_epoch(self, epoch: int) -> Result:
        """Return the result of one pass over the stream, without additional metrics."""
        return Result(
            tuple(record for record in self.records if record.epoch == epoch),
            {group: own for group, own in self.sums.items() if group.epoch == epoch},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON types; missing and non-finite values are None."""
        are_pixels = any(record.n_pixel_images is not None for record in self.records)
        names = (*_SUMMARY, "n_images") if are_pixels else _SUMMARY
        measured = (*_OF_SUMS, *_OF_PIXELS) if are_pixels else _OF_SUMS
        domains, probes = self.sums_by_domain.items(), self.probes
        summary: dict[str, Any] = to_plain(
            {
                **{name: getattr(self, name) for name in names},
                **{name: getattr(self, name) if self.sums else None for name in measured},
                "by_domain": {name: own.summary() for name, own in domains if own.n},
                "forgetting": self.forgetting if len(probes) > 1 else None,
                "probes": [{**vars(probe), "error": probe.error} for probe in probes],
                "extra": self.extra,
                "extra_by_domain": self.extra_by_domain,
            }
        )
        return summary

    def _mean(self, get: Callable[[Record], float]) -> float:
        counted = [record for record in self.counted if record.n]
        return sum(get(record) * record.n for record in counted) / sum(r.n for r in counted)


def pool(results: Iterable[Result]) -> Result:
    """Return the combined result, as if all records were of one stream.

    It has sums if all results have them. Additional metrics cannot be combined.
    """
    together = tuple(results)
    complete = all(result.sums for result in together)
    named = [pair for result in together for pair in result.sums.items()]
    records = tuple(record for result in together for record in result.records)
    return Result(records, merge(named) if complete else {})


def find_errors(records: Iterable[Record]) -> dict[str, float]:
    """Return the share of wrong predictions in each domain, in order of occurrence."""
    return _divide(
        (name, n_errors, n) for r in records for name, (n, n_errors) in r.by_domain.items()
    )


def _estimate_errors(
    records: Iterable[Record], get: Callable[[Record], float | None]
) -> dict[str, float]:
    known = ((record, get(record)) for record in records)
    return _divide(
        (name, (1 - accuracy) * n, n)
        for record, accuracy in known
        if accuracy is not None
        for name, (n, _) in record.by_domain.items()
    )


def _divide(counts: Iterable[tuple[str, float, int]]) -> dict[str, float]:
    """Return by name the sum of the first numbers divided by the sum of the second ones."""
    wrong: dict[str, float] = {}
    seen: dict[str, int] = {}
    for name, n_errors, n in counts:
        wrong[name] = wrong.get(name, 0) + n_errors
        seen[name] = seen.get(name, 0) + n
    # If every pixel is predicted, a domain may have no labelled pixel.
    return {name: wrong[name] / seen[name] for name in seen if seen[name]}


def _mean_of(values: Collection[float], otherwise: Default) -> float | Default:
    return sum(values) / len(values) if values else otherwise


# Sums of a stream ---------------------------------------------------------------------------------


def merge(named: Iterable[tuple[Name, Sums]]) -> dict[Name, Sums]:
    """Return sums by name, with those of the same name added."""
    found: dict[Name, Sums] = {}
    for name, own in named:
        found[name] = found[name] + own if name in found else own
    return found


def pack_sums(sums: Mapping[Group, Sums]) -> list[dict[str, Any]]:
    """Return sums as JSON types, one item per group."""
    return [{**group._asdict(), **own.to_dict()} for group, own in sums.items()]


def unpack_sums(items: Iterable[Mapping[str, Any]]) -> dict[Group, Sums]:
    """Build sums from the result of `pack_sums`; repeated groups are added."""
    found: list[tuple[Group, Sums]] = []
    for item in items:
        if missing := [name for name in Group._fields if name not in item]:
            raise BadInput(
                "wrong_fields",
                f"Expected packed sums with {', '.join(Group._fields)}, found no "
                f"{', '.join(missing)}. Pass the result of pack_sums().",
                missing=tuple(missing),
                unknown=(),
            )
        own = {name: value for name, value in item.items() if name not in Group._fields}
        group = Group(*(item[name] for name in Group._fields))
        found.append((group, (PixelSums if "confusion" in own else Sums).from_dict(own)))
    return merge(found)


class Metric(Protocol):
    """A metric or collection of torchmetrics, or any object with these three methods.

    It receives probabilities (batch, classes) and labels on the CPU.
    """

    def update(self, probs: Tensor, y: Tensor, /) -> Any:
        """Add a batch."""

    def compute(self) -> Any:
        """Return the value over all batches, or several values by name."""

    def reset(self) -> Any:
        """Discard all batches."""


class Collector:
    """Sums over every group of samples, in memory that does not grow with the stream.

    Args:
        metrics: An additional metric, computed over all samples that count and by domain. It is
            copied and not changed. It may store every sample.

    Attributes:
        sums: Sums by pass, domain, and whether the samples are probes.
    """

    def __init__(self, metrics: Metric | None = None) -> None:
        self.sums: dict[Group, Sums] = {}
        self._blank: Metric | None = None
        self._whole: dict[bool, Metric] = {}
        self._by_domain: dict[str, Metric] = {}
        if metrics is not None:
            check_metric(metrics)
            self._blank = copy.deepcopy(metrics)
            self._blank.reset()

    def update(
        self,
        logits: Tensor,
        y: Tensor,
        names: Sequence[str],
        epoch: int = 1,
        is_probe: bool = False,
        are_pixels: bool = False,
    ) -> None:
        """Add predictions (rows, K), their labels, and the domain of each row.

        A single name applies to all rows. For pixels, the confusion matrix is summed as well.
        """
        kind = PixelSums if are_pixels else Sums
        rows = find_rows(names)
        for name, own in rows.items():
            group = Group(epoch, name, is_probe)
            if group not in self.sums:
                self.sums[group] = kind(logits.shape[1])
            self.sums[group].update(logits[own], y[own])
        if self._blank is None or not len(y):
            return
        probs, y = to_probs(logits), y.cpu()
        for name, own in rows.items():
            if name not in self._by_domain:
                self._by_domain[name] = copy.deepcopy(self._blank)
            self._by_domain[name].update(probs[own], y[own])
        if is_probe not in self._whole:
            self._whole[is_probe] = copy.deepcopy(self._blank)
        self._whole[is_probe].update(probs, y)

    def result(self, records: Iterable[Record]) -> Result:
        """Return the summary of the collected sums, with the records of the same batches."""
        # Probes count only if there is nothing else.
        whole = self._whole.get(False, self._whole.get(True))
        return Result(
            records=tuple(records),
            sums=copy.deepcopy(self.sums),  # copied, because they may continue to grow
            extra={} if whole is None else _compute(whole),
            extra_by_domain={name: _compute(metric) for name, metric in self._by_domain.items()},
        )


def to_probs(logits: Tensor) -> Tensor:
    """Return probabilities on the CPU for metrics."""
    return log_probs(logits.detach()).exp().cpu()


def check_metric(metric: Any) -> None:
    """Refuse an object without update, compute and reset."""
    needed = ("update", "compute", "reset")
    if isinstance(metric, type) or not all(callable(getattr(metric, n, None)) for n in needed):
        raise BadInput(
            "wrong_type",
            "Expected a metric with update, compute and reset, such as those of torchmetrics, "
            f"found {metric.__name__ if isinstance(metric, type) else type(metric).__name__}. "
            "Combine several metrics in one torchmetrics.MetricCollection([...]).",
            option="metrics",
            found=type(metric).__name__,
        )


def find_rows(names: Sequence[str]) -> dict[str, slice | list[int]]:
    """Return the rows of each name; a slice without a copy if there is only one name."""
    if len(set(names)) == 1:
        return {names[0]: slice(None)}
    rows: dict[str, slice | list[int]] = {name: [] for name in names}
    for row, name in enumerate(names):
        rows[name].append(row)  # type: ignore[union-attr]
    return rows


def _compute(metric: Metric) -> dict[str, Any]:
    value = metric.compute()
    return dict(value) if isinstance(value, Mapping) else {type(metric).__name__: value}
