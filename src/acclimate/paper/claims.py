"""The numbers of a run as cells of a table, the paper's claims about them, and whether they hold.

A cell has numbers by seed and domain, so that two cells can be paired. A claim is a statistic of
cells that is above zero where the claim holds, such as the error of one row minus that of another.
The share of resamples in which it is above zero is the confidence; see `acclimate.report.stats`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from acclimate.bench.suite import Outcome
from acclimate.errors import BadInput
from acclimate.evaluation import Result
from acclimate.report.stats import Measure, most_confidence, resample

#: Tables drawn to judge one claim; the draws are the same in every run.
RESAMPLES = 10_000
#: From which confidence on something counts as held or not held.
ENOUGH = 0.95
_SEED = 0

#: Row and column.
Cell = tuple[str, str]
#: Numbers in percent by seed and domain.
Errors = Mapping[int, Mapping[str, float]]
Floats = npt.NDArray[np.float64]
#: Mean numbers of cells, in any number of tables at once.
Numbers = Mapping[Cell, Floats]

#: What the columns are: the jobs'; the mean and every corruption of one job; severities, each a
#: job, and their mean; the passes of one job; sets of domains, each domain a job.
Kind = Literal["jobs", "corruptions", "severities", "passes", "domains"]
#: The share of wrong predictions, or mean intersection over union, of which more is better.
Measured = Literal["error", "miou"]
Verdicts = Literal["holds", "does not hold", "cannot be told"]

MEAN, AVERAGE = "mean", "average"  # the second is over sets of domains
#: Between a corruption and its severity, where several of it are in one cell.
SEVERITY = ", severity "


@dataclass(frozen=True)
class Grid:
    """All cells of one setup; `paper` is the setting of the paper that it is or stands in for."""

    name: str
    paper: str
    cells: Mapping[Cell, Errors]

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows in the order of the jobs."""
        return tuple(dict.fromkeys(row for row, _ in self.cells))

    @property
    def domains(self) -> tuple[str, ...]:
        """The corruptions that came, in their order."""
        every = (own for errors in self.cells.values() for own in errors.values())
        return tuple(dict.fromkeys(domain for own in every for domain in own))

    def measure(self, row: str, column: str, domain: str | None = None) -> Measure | None:
        """Return the mean over the domains of a cell, or the number of one; None if there is none.

        A cell without the domain has no number either.
        """
        errors = self.cells.get((row, column), {}).values()
        if domain is None:
            found = [statistics.fmean(own.values()) for own in errors]
        else:
            found = [own[domain] for own in errors if domain in own]
        return Measure.of(found) if found else None


def read_grids(
    outcomes: Sequence[Outcome], kind: Kind, measured: Measured = "error"
) -> tuple[Grid, ...]:
    """Return the cells of every setup, in the order of the jobs.

    Raises:
        BadInput: The jobs are not those of an experiment, or have not predicted pixels.
    """
    found: dict[tuple[str, str], dict[Cell, dict[int, dict[str, float]]]] = {}
    for outcome in outcomes:
        axes, entry = outcome.entry.axes, outcome.entry
        missing = tuple(name for name in ("setting", "row", "column") if name not in axes)
        if missing:
            raise BadInput(
                "wrong_fields",
                f'Expected the jobs of an experiment; "{entry.label}" defines no row or '
                "column. Pass the outcomes of Experiment.suite().",
                missing=missing,
                unknown=(),
            )
        cells = found.setdefault((entry.group, str(axes["setting"])), {})
        for column, errors in _read(outcome, kind, measured).items():
            cell = cells.setdefault((str(axes["row"]), column), {})
            cell.setdefault(entry.spec.seed, {}).update(errors)
    return tuple(Grid(*names, cells) for names, cells in found.items())


def _read(outcome: Outcome, kind: Kind, measured: Measured) -> dict[str, dict[str, float]]:
    """Return the numbers of one job in percent, by column and domain."""
    column, result = str(outcome.entry.axes["column"]), outcome.result
    if kind == "passes":
        passes = sorted({record.epoch for record in result.records})
        return {str(n): _percent(result.of_epoch(n), measured) for n in passes}
    errors = _percent(result, measured)
    if kind == "corruptions":
        return {MEAN: errors}
    if kind == "severities":
        return {
            MEAN: {f"{name}{SEVERITY}{column}": e for name, e in errors.items()},
            column: errors,
        }
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


# What is above zero where a claim of a kind holds, from the numbers of its sides, cells first.
_STATISTICS: dict[str, Callable[[Floats, Floats], Floats]] = {
    # One error is lower than another; than several; the lowest of some, of those that were run.
    **dict.fromkeys(("below", "lowest", "best_below"), lambda a, b: b.min(axis=0) - a.min(axis=0)),
    # One number is higher than another, where more is better.
    "above": lambda a, b: a[0] - b[0],
    # The error falls more from the first to the second cell of one side than of the other.
    "larger_gain": lambda a, b: (a[0] - a[1]) - (b[0] - b[1]),
    # Several errors lie within so many points of each other: the margin.
    "near": lambda a, b: -np.ptp(a, axis=0),
    # Some numbers lie closer together than others do.
    "steadier": lambda a, b: np.ptp(b, axis=0) - np.ptp(a, axis=0),
}


@dataclass(frozen=True)
class Claim:
    """Something the paper draws from a table.

    Attributes:
        text: The claim, as a sentence.
        kind: One of those of `experiments.toml`.
        sides: The cells that are compared.
        where: Beginning of the names of the settings it is made for; empty for all.
        units: What is paired within a seed.
        margin: By how much it may fail to hold, in points.
    """

    text: str
    kind: str
    sides: tuple[tuple[Cell, ...], tuple[Cell, ...]]
    where: str = ""
    units: str = "corruptions"
    margin: float = 0.0

    @property
    def cells(self) -> tuple[Cell, ...]:
        """What it is about."""
        return tuple(dict.fromkeys(cell for side in self.sides for cell in side))

    def statistic(self, numbers: Numbers) -> Floats:
        """Return what is above zero where it holds, in points."""
        own = ([numbers[cell] for cell in side if cell in numbers] for side in self.sides)
        return _STATISTICS[self.kind](*map(np.asarray, own)) + self.margin

    def find_missing(self, there: Collection[Cell]) -> list[Cell]:
        """Return the cells without which there is no verdict."""
        if self.kind == "best_below":  # cells of a side stand for each other: one is enough
            return [cell for side in self.sides if not set(side) & set(there) for cell in side]
        return [cell for cell in self.cells if cell not in there]


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds in a run.

    Attributes:
        confidence: That it holds, if the verdict is that it does; else that it does not.
        margin: The statistic itself, in points; None if cells are missing.
        n_seeds: Seeds that it was computed over; those that change nothing count once.
        n_domains: Corruptions, or whatever is paired, that it was computed over.
        published: Whether it holds in the paper's own numbers; None if they are not in the text.
        reason: Why nothing can be told.
    """

    claim: str
    setup: str
    verdict: Verdicts
    confidence: float | None = None
    margin: float | None = None
    n_seeds: int = 0
    n_domains: int = 0
    units: str = "corruptions"
    published: bool | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {**vars(self), "resamples": RESAMPLES}


def judge(claim: Claim, grid: Grid, published: Mapping[Cell, float] | None = None) -> Verdict:
    """Return whether a claim holds in a run; `published` are the paper's own numbers, if any."""
    there = {c: np.asarray(v) for c, v in (published or {}).items() if c in claim.cells}
    stated = None if claim.find_missing(there) else bool(claim.statistic(there) > 0)
    unknown = Verdict(claim.text, grid.name, "cannot be told", published=stated)
    cells = [cell for cell in claim.cells if grid.cells.get(cell)]
    missing = claim.find_missing(cells)
    if missing:
        names = "; ".join(" ".join(part for part in cell if part) for cell in missing)
        return replace(unknown, reason=f"not there: {names}")
    found = align([grid.cells[cell] for cell in cells])
    if not found[0].size:
        return replace(unknown, reason="the cells have no seed and corruption in common")
    means = {cell: np.asarray(own.mean()) for cell, own in zip(cells, found, strict=True)}
    drawn = resample(np.stack(found), RESAMPLES, _SEED).T
    draws = claim.statistic(dict(zip(cells, drawn, strict=True)))
    verdict, confidence, reason = decide(draws, found[0].size)
    return replace(
        unknown,
        verdict=verdict,
        confidence=confidence,
        margin=float(claim.statistic(means)),
        n_seeds=found[0].shape[0],
        n_domains=found[0].shape[1],
        units=claim.units,
        reason=reason,
    )


def align(cells: Sequence[Errors]) -> list[Floats]:
    """Return the errors that all cells have in common, each as an array of seeds × domains.

    Nothing is counted twice: severities of one corruption are averaged, and seeds that change
    nothing in any cell, as where neither order nor method draws, are one.
    """
    seeds = [seed for seed in cells[0] if all(seed in errors for errors in cells)]
    every = [errors[seed] for errors in cells for seed in seeds]
    domains: dict[str, list[str]] = {}
    for name in every[0] if every else ():
        if all(name in own for own in every):
            domains.setdefault(name.partition(SEVERITY)[0], []).append(name)
    found = [
        np.array(
            [[np.mean([errors[s][n] for n in own]) for own in domains.values()] for s in seeds]
        ).reshape(len(seeds), len(domains))
        for errors in cells
    ]
    if not seeds:
        return found
    different = np.unique(np.stack(found, axis=1), axis=0, return_index=True)[1]
    return [own[np.sort(different)] for own in found]


def decide(draws: Floats, n_pairs: int) -> tuple[Verdicts, float, str]:
    """Return verdict, confidence and, if nothing can be told, why.

    Args:
        draws: The statistic of a claim in drawn tables.
        n_pairs: Seeds × domains of the run.
    """
    most = most_confidence(n_pairs)
    above, under = float(np.mean(draws > 0)), float(np.mean(draws < 0))
    confidence = min(max(above, under), most)
    if not above and not under:
        return "cannot be told", confidence, "there is no difference at all"
    if max(above, under) >= ENOUGH > most:
        return "cannot be told", confidence, f"only {n_pairs} pairs"
    if confidence < ENOUGH:
        return "cannot be told", confidence, "it changes with what is drawn"
    return ("holds" if above > under else "does not hold"), confidence, ""


def read_claim(given: Mapping[str, Any], columns: Sequence[str]) -> Claim:
    """Return a claim as `experiments.toml` describes it; `columns` are those of its table."""
    (kind,) = given.keys() & _STATISTICS.keys()
    about = {key: own for key, own in given.items() if key != kind}
    if kind in ("best_below", "steadier"):  # about whole rows
        first, second = (tuple((row, column) for column in columns) for row in given[kind])
        return Claim(kind=kind, sides=(first, second), **about)
    cells = []
    for name in given[kind]:
        row, _, column = name.partition(" @ ")
        cells.append(("Ours", row) if row in columns else (row, column or columns[0]))
    n = {"larger_gain": 2, "near": len(cells)}.get(kind, 1)
    return Claim(kind=kind, sides=(tuple(cells[:n]), tuple(cells[n:])), **about)
