"""What a comparison gives: a table, summaries, and where the numbers come from."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from acclimate.report import Run, Table, summarize
from acclimate.report.columns import Column


@dataclass(frozen=True)
class Comparison:
    """What came out.

    Attributes:
        runs: Every method with every seed.
        provenance: Where the numbers come from.
    """

    runs: tuple[Run, ...]
    provenance: dict[str, Any]

    @property
    def table(self) -> Table:
        """Errors of every method on every domain, and speed."""
        return summarize(self.runs)

    @property
    def quality(self) -> tuple[Column, ...]:
        """Columns for negative log-likelihood and calibration error, which tables of one domain
        have room for.
        """
        methods = list(dict.fromkeys(run.method for run in self.runs))
        columns = []
        for name, attribute in (("NLL", "nll"), ("ECE", "ece")):
            values = [
                statistics.fmean(
                    getattr(run.result, attribute) for run in self.runs if run.method == method
                )
                for method in methods
            ]
            texts = [f"{value:.3f}" for value in values]
            columns.append(
                Column(name, tuple(values), tuple(texts), tuple(t == min(texts) for t in texts))
            )
        return tuple(columns)

    def to_dict(self) -> dict[str, Any]:
        """Return table, summaries and provenance as JSON types; errors of the table in percent."""
        return {
            "table": [asdict(row) for row in self.table.rows],
            "runs": [
                {"method": run.method, "seed": run.seed, **run.result.to_dict()}
                for run in self.runs
            ],
            "provenance": self.provenance,
        }
