"""The summary of a stream, from the records of its batches and the sums over its samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

from acclimate.errors import BadInput
from acclimate.measures.accumulator import Measures
from acclimate.measures.calibration import Array
from acclimate.measures.groups import Group, Probe, find_errors, find_probes, merge
from acclimate.measures.pixels import PixelMeasures
from acclimate.measures.plain import to_plain
from acclimate.measures.record import Record


@dataclass(frozen=True)
class Result:
    """The summary of one stream.

    Probes count in `n`, `error_by_domain` and `probes` only; where all batches are probes, they
    count as any others. Errors are shares from 0 to 1.

    Attributes:
        records: One a batch.
        measures: Sums over samples; without them, what needs them is refused.
        extra: What the metrics that were asked for gave, over all samples that count, by name.
        extra_by_domain: The same for each domain.
    """

    records: tuple[Record, ...]
    measures: Mapping[Group, Measures] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    extra_by_domain: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = sum(own.n for own in self.measures.values())
        if self.measures and n != self.n:
            raise BadInput(
                "count_mismatch",
                f"expected measures of the {self.n} samples in the records, found those of {n}. "
                "Were they taken from another run?",
                expected=self.n,
                found=n,
            )

    @property
    def n(self) -> int:
        """Predictions that count: one a sample seen, or one a labelled pixel."""
        return sum(record.n for record in self.records)

    @property
    def n_images(self) -> int:
        """Samples seen, however many predictions each has."""
        return sum(record.n_images for record in self.records)

    @property
    def counted(self) -> tuple[Record, ...]:
        """The records that count: all but probes."""
        return tuple(record for record in self.records if not record.is_probe) or self.records

    @property
    def error_by_domain(self) -> dict[str, float]:
        """Share of wrong predictions in each domain, in the order in which they came."""
        return find_errors(self.records)

    @property
    def error(self) -> float:
        """Mean of the domains' errors; probes, which are not learned from, do not count."""
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
    def whole(self) -> Measures:
        """The measures of all samples that count, together.

        Raises:
            BadInput: The result was made from records alone.
        """
        if not self.measures:
            raise BadInput(
                "not_recorded",
                "expected sums over samples, found records alone, from which calibration and "
                "classes cannot be told. Use evaluate(...), or iter_evaluate with a Tally.",
                what="measures",
            )
        measured = [own for group, own in self.measures.items() if not group.is_probe]
        return reduce(add, measured or self.measures.values())

    @property
    def measures_by_domain(self) -> dict[str, Measures]:
        """The measures of each domain over all passes, probes among them."""
        return merge((group.domain, own) for group, own in self.measures.items())

    @property
    def pixels(self) -> PixelMeasures:
        """The measures of all pixels that count, together.

        Raises:
            BadInput: Whole images were predicted, or the result was made from records alone.
        """
        whole = self.whole
        if not isinstance(whole, PixelMeasures):
            raise BadInput(
                "not_recorded",
                "expected predictions of every pixel, found those of whole images, which do not "
                "overlap with anything. Look at error instead.",
                what="pixels",
            )
        return whole

    @property
    def miou(self) -> float:
        """Mean intersection over union of the classes, all pixels that count together.

        Classes that occur neither in truth nor in predictions are left out of the mean.
        """
        return self.pixels.miou

    @property
    def iou_by_class(self) -> dict[int, float]:
        """Intersection over union of each class that occurs in truth or predictions."""
        return self.pixels.iou_by_class

    @property
    def pixel_accuracy(self) -> float:
        """Share of pixels that were predicted correctly, all that count together."""
        return self.pixels.pixel_accuracy

    @property
    def confusion(self) -> Array:
        """How many pixels of each true class (row) were taken for which (column)."""
        return self.pixels.confusion

    @property
    def miou_by_domain(self) -> dict[str, float]:
        """Mean intersection over union in each domain that has labelled pixels."""
        found = self.measures_by_domain.items()
        return {name: m.miou for name, m in found if isinstance(m, PixelMeasures) and m.n}

    @property
    def error_by_class(self) -> dict[int, float]:
        """Share of wrong predictions in each true class that came."""
        return self.whole.error_by_class

    @property
    def histogram(self) -> tuple[int, ...]:
        """How often each class was predicted."""
        return self.whole.histogram

    @property
    def class_shares(self) -> tuple[float, ...]:
        """Share of each class among the predictions."""
        return self.whole.class_shares

    @property
    def ece(self) -> float:
        """Expected calibration error over 15 bins of equal width, all samples together."""
        return self.whole.ece

    @property
    def adaptive_ece(self) -> float:
        """Calibration error over 15 bins of equally many samples, all samples together."""
        return self.whole.adaptive_ece

    @property
    def probes(self) -> tuple[Probe, ...]:
        """The probes in the order in which they came; see `streams.with_clean_probe`."""
        return find_probes(self.records)

    @property
    def forgetting(self) -> float:
        """Error of the last probe minus that of the first: what was lost in between.

        Raises:
            BadInput: There are not two probes to compare.
        """
        probes = self.probes
        if len(probes) < 2:
            raise BadInput(
                "not_recorded",
                f"expected at least two probes to compare, found {len(probes)}. Run a stream of "
                "several domains made by streams.with_clean_probe(stream, clean).",
                what="probes",
            )
        return probes[-1].error - probes[0].error

    @property
    def ms_per_batch(self) -> float:
        """Median wall time of a call, in milliseconds."""
        times = sorted(record.ms for record in self.counted)
        return times[len(times) // 2]

    @property
    def images_per_second(self) -> float:
        """Samples over the time spent in calls."""
        counted = self.counted
        n = sum(record.n_images for record in counted)
        return 1000 * n / sum(record.ms for record in counted)

    @property
    def forwards_per_batch(self) -> float:
        """Mean number of forwards of a batch that was learned from."""
        return _mean_of([record.n_forwards for record in self.records if record.learned])

    @property
    def backwards_per_batch(self) -> float:
        """Mean number of backwards of a batch that was learned from."""
        return _mean_of([record.n_backwards for record in self.records if record.learned])

    @property
    def peak_memory(self) -> int | None:
        """Largest memory of any batch, in bytes; see `Record.peak_memory` for what it means."""
        return max((r.peak_memory for r in self.records if r.peak_memory is not None), default=None)

    @property
    def skipped(self) -> dict[str, int]:
        """Batches that were predicted without an update, by reason, over all resets."""
        reasons = [record.skipped for record in self.records if record.skipped is not None]
        return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}

    @property
    def n_skipped(self) -> int:
        """Batches that were predicted without an update, over all resets."""
        return sum(self.skipped.values())

    @property
    def n_restored(self) -> int:
        """States restored by the guard or by the method itself, over all resets."""
        return sum(record.restored for record in self.records)

    def of_epoch(self, epoch: int) -> Result:
        """Return what one pass over the stream gave, without the extra metrics."""
        return Result(
            tuple(record for record in self.records if record.epoch == epoch),
            {group: own for group, own in self.measures.items() if group.epoch == epoch},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON types; None for what is not a number or was not measured."""
        names = ["n", "error", "error_by_domain", "nll", "entropy", "confidence"]
        names += ["ms_per_batch", "images_per_second", "forwards_per_batch", "backwards_per_batch"]
        names += ["peak_memory", "n_skipped", "skipped", "n_restored"]
        measured = ["ece", "adaptive_ece", "error_by_class", "histogram"]
        if any(record.n_pixel_images is not None for record in self.records):
            names.append("n_images")
            measured += ["miou", "miou_by_domain", "pixel_accuracy", "iou_by_class", "confusion"]
        domains = self.measures_by_domain.items()
        probes = self.probes
        summary: dict[str, Any] = to_plain(
            {
                **{name: getattr(self, name) for name in names},
                **{name: getattr(self, name) if self.measures else None for name in measured},
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
    """Return all records and measures together, as if they were of one stream.

    Measures are there if all the results have them; extra metrics cannot be added up.
    """
    together = tuple(results)
    complete = all(result.measures for result in together)
    named = [pair for result in together for pair in result.measures.items()]
    records = tuple(record for result in together for record in result.records)
    return Result(records, merge(named) if complete else {})


def _mean_of(counts: list[int]) -> float:
    return sum(counts) / len(counts) if counts else math.nan
