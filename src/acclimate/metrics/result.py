"""The summary of a stream from the records of its batches and the sums over its samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

from acclimate.errors import BadInput
from acclimate.metrics.calibration import Array
from acclimate.metrics.groups import (
    Group,
    Probe,
    estimate_errors,
    find_errors,
    find_probes,
    merge,
)
from acclimate.metrics.pixels import PixelSums
from acclimate.metrics.plain import to_plain
from acclimate.metrics.record import Record
from acclimate.metrics.sums import Sums


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
        """Mean intersection over union of the classes, over all pixels that count.

        Classes that occur neither in truth nor in predictions are excluded.
        """
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
        return find_probes(self.records)

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
        return _mean_of([record.n_forwards for record in self.records if record.learned])

    @property
    def backwards_per_batch(self) -> float:
        """Mean number of backward passes per batch that was learned from."""
        return _mean_of([record.n_backwards for record in self.records if record.learned])

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
        return estimate_errors(self.records, lambda record: record.estimated_accuracy)

    @property
    def estimated_error(self) -> float | None:
        """Mean of `estimated_error_by_domain`, without probes; None if nothing was estimated.

        It estimates `error`, except for the first batches, which have no estimate.
        """
        return _mean_over(
            estimate_errors(self.counted, lambda record: record.estimated_accuracy).values()
        )

    @property
    def estimated_source_error(self) -> float | None:
        """The same of the source model, whichever model answered."""
        return _mean_over(
            estimate_errors(
                self.counted,
                lambda record: None if record.estimate is None else record.estimate.source.value,
            ).values()
        )

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
        names = ["n", "error", "error_by_domain", "nll", "entropy", "confidence"]
        names += ["ms_per_batch", "images_per_second", "forwards_per_batch", "backwards_per_batch"]
        names += ["peak_memory", "n_skipped", "skipped", "n_restored"]
        names += ["estimated_error", "estimated_error_by_domain", "estimated_source_error"]
        names += ["by_source", "n_rests"]
        measured = ["ece", "adaptive_ece", "error_by_class", "histogram"]
        if any(record.n_pixel_images is not None for record in self.records):
            names.append("n_images")
            measured += ["miou", "miou_by_domain", "pixel_accuracy", "iou_by_class", "confusion"]
        domains = self.sums_by_domain.items()
        probes = self.probes
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


def _mean_over(shares: Collection[float]) -> float | None:
    return sum(shares) / len(shares) if shares else None


def _mean_of(counts: list[int]) -> float:
    return sum(counts) / len(counts) if counts else math.nan
