"""Collects sums by domain and additional metrics while a stream is evaluated."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.entropy import log_probs
from acclimate.metrics.groups import Group, merge
from acclimate.metrics.pixels import PixelSums
from acclimate.metrics.record import Record
from acclimate.metrics.result import Result
from acclimate.metrics.sums import Sums


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
        kind = PixelSums if "confusion" in own else Sums
        found.append((group, kind.from_dict(own)))
    return merge(found)


def find_rows(names: Sequence[str]) -> dict[str, slice | list[int]]:
    """Return the rows of each name; a slice without a copy if there is only one name."""
    if len(set(names)) == 1:
        return {names[0]: slice(None)}
    return {
        name: [row for row, other in enumerate(names) if other == name]
        for name in dict.fromkeys(names)
    }


def _compute(metric: Metric) -> dict[str, Any]:
    value = metric.compute()
    return dict(value) if isinstance(value, Mapping) else {type(metric).__name__: value}
