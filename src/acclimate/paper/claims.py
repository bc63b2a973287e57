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


@dataclass(frozen=True)
class Claim:
    """Something the paper draws from a table.

    Attributes:
        text: The claim, as a sentence.
        cells: What it is about.
        statistic: Above zero where the claim holds; in points.
        where: Beginning of the names of the settings it is made for; empty for all.
        units: What is paired within a seed.
        sides: Cells that stand for each other, such as the rates of a curve: one of each is
            enough. Empty if all cells are needed.
    """

    text: str
    cells: tuple[Cell, ...]
    statistic: Callable[[Numbers], Floats]
    where: str = ""
    units: str = "corruptions"
    sides: tuple[tuple[Cell, ...], ...] = ()

    def find_missing(self, there: Collection[Cell]) -> list[Cell]:
        """Return the cells without which there is no verdict."""
        sides = self.sides or tuple((cell,) for cell in self.cells)
        return [cell for side in sides if not set(side) & set(there) for cell in side]


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds in a run.

    Attributes:
        claim: The claim, as a sentence.
        setup: Where.
        verdict: What was found.
        confidence: That it holds, if the verdict is that it does; else that it does not.
        margin: The statistic itself, in points; None if cells are missing.
        n_seeds: Seeds that it was computed over; those that change nothing count once.
        n_domains: Corruptions, or whatever is paired, that it was computed over.
        units: What these are.
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


def _low(numbers: Numbers, cells: Sequence[Cell]) -> Floats:
    """Return the lowest of the cells that are there."""
    return np.asarray(np.min([numbers[cell] for cell in cells if cell in numbers], axis=0))


def _spread(numbers: Numbers, cells: Sequence[Cell]) -> Floats:
    return np.asarray(np.ptp([numbers[cell] for cell in cells], axis=0))


def below(a: Cell, b: Cell, text: str, where: str = "") -> Claim:
    """Return the claim that one error is lower than another."""
    return lowest(a, [b], text, where)


def above(a: Cell, b: Cell, text: str, where: str = "") -> Claim:
    """Return the claim that one number is higher than another, where more is better."""
    return Claim(text, (a, b), lambda numbers: numbers[a] - numbers[b], where)


def lowest(a: Cell, others: Sequence[Cell], text: str, where: str = "") -> Claim:
    """Return the claim that one error is lower than all of the others."""
    return Claim(text, (a, *others), lambda errors: _low(errors, others) - errors[a], where)


def best_below(
    a: Sequence[Cell], b: Sequence[Cell], text: str, where: str = "", margin: float = 0.0
) -> Claim:
    """Return the claim that the lowest error of some is below the lowest of others by a margin.

    Of each side, those that were run are compared.
    """
    made = Claim(text, (*a, *b), lambda errors: _low(errors, b) - _low(errors, a) - margin, where)
    return replace(made, sides=(tuple(a), tuple(b)))


def larger_gain(a: tuple[Cell, Cell], b: tuple[Cell, Cell], text: str, where: str = "") -> Claim:
    """Return the claim that the error falls more from the first to the second cell of a than of b.

    >>> claim = larger_gain((("x", ""), ("y", "")), (("x", ""), ("z", "")), "y helps more than z")
    >>> errors = {("x", ""): np.array(9.0), ("y", ""): np.array(5.0), ("z", ""): np.array(8.0)}
    >>> float(claim.statistic(errors))
    3.0
    """

    def statistic(errors: Numbers) -> Floats:
        return (errors[a[0]] - errors[a[1]]) - (errors[b[0]] - errors[b[1]])

    return Claim(text, tuple(dict.fromkeys((*a, *b))), statistic, where)


def near(cells: Sequence[Cell], margin: float, text: str, where: str = "") -> Claim:
    """Return the claim that several errors lie within so many points of each other."""
    return Claim(text, tuple(cells), lambda errors: margin - _spread(errors, cells), where)


def steadier(a: Sequence[Cell], b: Sequence[Cell], text: str, where: str = "") -> Claim:
    """Return the claim that some numbers lie closer together than others do."""
    return Claim(text, (*a, *b), lambda own: _spread(own, b) - _spread(own, a), where)


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
    about = {key: given[key] for key in ("text", "where") if key in given}
    (kind,) = set(given) & set(_KINDS)
    if kind in ("best_below", "steadier"):  # about whole rows
        curves = [[(row, column) for column in columns] for row in given[kind]]
        return _KINDS[kind](*curves, **about)
    cells = []
    for name in given[kind]:
        row, _, column = name.partition(" @ ")
        cells.append(("Ours", row) if row in columns else (row, column or columns[0]))
    if kind == "near":
        return near(cells, given["margin"], **about)
    if kind == "lowest":
        return lowest(cells[0], cells[1:], **about)
    pairs = [cells[:2], cells[2:]] if kind == "larger_gain" else cells
    made: Claim = _KINDS[kind](*pairs, **about)
    return replace(made, units=given.get("units", made.units))


_KINDS: dict[str, Callable[..., Claim]] = {
    make.__name__: make for make in (below, above, lowest, best_below, larger_gain, near, steadier)
}
