"""What came out of a job, as tables and reports take it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from acclimate.bench.job import JobSpec
from acclimate.evaluation import Result


@dataclass(frozen=True)
class Entry:
    """A job of a suite, with what the suite calls it.

    Attributes:
        spec: The job.
        label: Of its row, such as "main + SWR"; jobs that differ in the seed only share it.
        group: Of rows that are compared with each other, such as a backbone; may be empty.
        axes: What varies in the suite and what it is here, such as {"lr": 1e-4}, for columns and
            plots.
    """

    spec: JobSpec
    label: str
    group: str = ""
    axes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A job that has reached its end.

    Attributes:
        entry: The job, and what it is called.
        result: What was recorded, batch by batch.
        provenance: Where the numbers come from, as JSON types.
        folder: Where its records lie, relative to the folder of the suite.
    """

    entry: Entry
    result: Result
    provenance: Mapping[str, Any]
    folder: str = ""

    @property
    def error(self) -> float:
        """Mean error over the domains, in percent."""
        return 100 * self.result.error

    @property
    def miou(self) -> float | None:
        """Mean over the domains of the classes' mean overlap, in percent; None if of no pixels."""
        shares = self.result.miou_by_domain.values()
        return 100 * statistics.fmean(shares) if shares else None
