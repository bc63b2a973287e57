"""The errors of a run, or its overlaps, as cells of a table: each by seed and domain."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from acclimate.bench.outcome import Outcome
from acclimate.errors import BadInput
from acclimate.evaluation import Result
from acclimate.report.stats import Measure

#: Row and column.
Cell = tuple[str, str]
#: Numbers in percent by seed and domain, so that they can be paired with those of another cell.
Errors = Mapping[int, Mapping[str, float]]

#: What the columns of a table are: the jobs'; the mean and every corruption of one job; severities,
#: each a job, and their mean; the passes of one job; sets of domains, each domain a job.
Kind = Literal["jobs", "corruptions", "severities", "passes", "domains"]

#: What the numbers are: the share of wrong predictions, of which less is better, or of pixels the
#: mean intersection over union, of which more is.
Measured = Literal["error", "miou"]

MEAN = "mean"
#: Over sets of domains.
AVERAGE = "average"
#: Between a corruption and its severity, where several of it are in one cell.
SEVERITY = ", severity "


@dataclass(frozen=True)
class Grid:
    """All cells of one setup.

    Attributes:
        name: Of the setup.
        paper: The setting of the paper that it is, or stands in for.
        cells: The numbers.
    """

    name: str
    paper: str
    cells: Mapping[Cell, Errors]

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows in the order of the jobs."""
        return tuple(dict.fromkeys(row for row, _ in self.cells))

    def measure(self, row: str, column: str) -> Measure | None:
        """Return what a cell shows; None if nothing came out for it."""
        errors = self.cells.get((row, column))
        if not errors:
            return None
        return Measure.of([statistics.fmean(own.values()) for own in errors.values()])

    def measure_domain(self, row: str, domain: str) -> Measure | None:
        """Return the number of one corruption in a table of corruptions."""
        errors = self.cells.get((row, MEAN), {})
        found = [own[domain] for own in errors.values() if domain in own]
        return Measure.of(found) if found else None

    @property
    def domains(self) -> tuple[str, ...]:
        """The corruptions that came, in their order."""
        every = (own for errors in self.cells.values() for own in errors.values())
        return tuple(dict.fromkeys(domain for own in every for domain in own))


def read_grids(
    outcomes: Sequence[Outcome], kind: Kind, measured: Measured = "error"
) -> tuple[Grid, ...]:
    """Return the cells of every setup, in the order of the jobs.

    Raises:
        BadInput: The jobs are not those of an experiment, or have not predicted pixels.
    """
    found: dict[str, dict[Cell, dict[int, dict[str, float]]]] = {}
    settings: dict[str, str] = {}
    for outcome in outcomes:
        axes = outcome.entry.axes
        missing = tuple(name for name in ("setting", "row", "column") if name not in axes)
        if missing:
            raise BadInput(
                "wrong_fields",
                f'Expected the jobs of an experiment; "{outcome.entry.label}" defines no row or '
                "column. Pass the outcomes of Experiment.suite().",
                missing=missing,
                unknown=(),
            )
        group = outcome.entry.group
        settings[group] = str(axes["setting"])
        own = found.setdefault(group, {})
        for column, errors in _read(outcome, kind, measured).items():
            cell = own.setdefault((str(axes["row"]), column), {})
            cell.setdefault(outcome.entry.spec.seed, {}).update(errors)
    return tuple(Grid(name, settings[name], cells) for name, cells in found.items())


def _read(outcome: Outcome, kind: Kind, measured: Measured) -> dict[str, dict[str, float]]:
    """Return the numbers of one job in percent, by column and domain."""
    column = str(outcome.entry.axes["column"])
    result = outcome.result
    if kind == "passes":
        passes = sorted({record.epoch for record in result.records})
        return {str(n): _percent(result.of_epoch(n), measured) for n in passes}
    errors = _percent(result, measured)
    if kind == "corruptions":
        return {MEAN: errors}
    if kind == "severities":
        named = {f"{domain}{SEVERITY}{column}": error for domain, error in errors.items()}
        return {MEAN: named, column: errors}
    if kind == "domains":
        named = {f"{column}, {domain}": error for domain, error in errors.items()}
        return {AVERAGE: named, column: errors, **dict.fromkeys(named, errors)}
    return {column: errors}


def _percent(result: Result, measured: Measured) -> dict[str, float]:
    shares = result.error_by_domain if measured == "error" else result.miou_by_domain
    if not shares:
        raise BadInput(
            "not_recorded",
            "Expected jobs with pixel predictions, found none with a measured overlap.",
            what=measured,
        )
    return {name: 100 * share for name, share in shares.items()}
