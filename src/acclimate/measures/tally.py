"""Adds up a stream as it comes: measures by domain, and the metrics of another package."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.entropy import log_probs
from acclimate.measures.accumulator import Measures
from acclimate.measures.groups import Group, merge
from acclimate.measures.pixels import PixelMeasures
from acclimate.measures.record import Record
from acclimate.measures.result import Result


class Metric(Protocol):
    """What torchmetrics calls a metric or a collection of them; anything with these three will do.

    It is given probabilities (batch, classes) and labels, on the CPU.
    """

    def update(self, probs: Tensor, y: Tensor, /) -> Any:
        """Take in a batch."""

    def compute(self) -> Any:
        """Return the value over all batches, or several by name."""

    def reset(self) -> Any:
        """Forget all batches."""


class Tally:
    """Measures of every group of samples, in memory that does not grow with the stream.

    Args:
        metrics: Computed besides, over all samples that count and by domain. It is copied, and
            stays as it is; whether it keeps every sample is its own affair.

    Attributes:
        measures: By pass, domain, and whether they were probes.
    """

    def __init__(self, metrics: Metric | None = None) -> None:
        self.measures: dict[Group, Measures] = {}
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
        """Take in predictions (rows, K), their labels, and the domain of each row.

        One name stands for all rows. Of pixels, it is also counted which class was taken for which.
        """
        kind = PixelMeasures if are_pixels else Measures
        rows = find_rows(names)
        for name, own in rows.items():
            group = Group(epoch, name, is_probe)
            if group not in self.measures:
                self.measures[group] = kind(logits.shape[1])
            self.measures[group].update(logits[own], y[own])
        if self._blank is None:
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
        """Return the summary of what was taken in, with the records of the same batches."""
        # As everywhere, probes count only where there is nothing else.
        whole = self._whole.get(False, self._whole.get(True))
        return Result(
            records=tuple(records),
            measures=copy.deepcopy(self.measures),  # which may go on growing
            extra={} if whole is None else _compute(whole),
            extra_by_domain={name: _compute(metric) for name, metric in self._by_domain.items()},
        )


def to_probs(logits: Tensor) -> Tensor:
    """Return probabilities on the CPU, as metrics take them."""
    return log_probs(logits.detach()).exp().cpu()


def check_metric(metric: Any) -> None:
    """Refuse what cannot be updated, computed and reset."""
    needed = ("update", "compute", "reset")
    if isinstance(metric, type) or not all(callable(getattr(metric, n, None)) for n in needed):
        raise BadInput(
            "wrong_type",
            "expected a metric with update, compute and reset, such as those of torchmetrics, "
            f"found {metric.__name__ if isinstance(metric, type) else type(metric).__name__}. "
            "Put several into one torchmetrics.MetricCollection([...]).",
            option="metrics",
            found=type(metric).__name__,
        )


def pack_measures(measures: Mapping[Group, Measures]) -> list[dict[str, Any]]:
    """Return measures as JSON types, one item a group."""
    return [{**group._asdict(), **own.to_dict()} for group, own in measures.items()]


def unpack_measures(items: Iterable[Mapping[str, Any]]) -> dict[Group, Measures]:
    """Return the measures that `pack_measures` wrote; groups that come again are added up."""
    found: list[tuple[Group, Measures]] = []
    for item in items:
        if missing := [name for name in Group._fields if name not in item]:
            raise BadInput(
                "wrong_fields",
                f"expected packed measures, found no {', '.join(missing)} in them.",
                missing=tuple(missing),
                unknown=(),
            )
        own = {name: value for name, value in item.items() if name not in Group._fields}
        group = Group(*(item[name] for name in Group._fields))
        kind = PixelMeasures if "confusion" in own else Measures
        found.append((group, kind.from_dict(own)))
    return merge(found)


def find_rows(names: Sequence[str]) -> dict[str, slice | list[int]]:
    """Return the rows of each name; all of them, without a copy, where there is one name only."""
    if len(set(names)) == 1:
        return {names[0]: slice(None)}
    return {
        name: [row for row, other in enumerate(names) if other == name]
        for name in dict.fromkeys(names)
    }


def _compute(metric: Metric) -> dict[str, Any]:
    value = metric.compute()
    return dict(value) if isinstance(value, Mapping) else {type(metric).__name__: value}
