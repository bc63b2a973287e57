"""Claims that the paper draws from its tables, and whether they hold in a run.

A claim is a statistic of the table's cells that is above zero if it holds, such as the error of one
row minus that of another. The share of the resamples in which it is above zero is the confidence
that the claim holds; see `acclimate.report.stats`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from acclimate.paper.cells import SEVERITY, Cell, Errors, Grid
from acclimate.report.stats import most_confidence, resample

#: Tables drawn to judge one claim; the draws are the same in every run.
RESAMPLES = 10_000
#: From which confidence on something counts as held or not held.
ENOUGH = 0.95
_SEED = 0

Floats = npt.NDArray[np.float64]
Verdicts = Literal["holds", "does not hold", "cannot be told"]


@dataclass(frozen=True)
class Claim:
    """Something the paper draws from a table.

    Attributes:
        text: The claim, as a sentence.
        cells: What it is about.
        statistic: From the mean number of each cell, in any number of tables at once, to numbers
            that are above zero where the claim holds; in points.
        where: Beginning of the names of the settings it is made for; empty for all.
        units: What is paired within a seed.
        sides: Cells that stand for each other, such as the rates of a curve: one of each is
            enough. Empty if all cells are needed.
    """

    text: str
    cells: tuple[Cell, ...]
    statistic: Callable[[Mapping[Cell, Floats]], Floats]
    where: str = ""
    units: str = "corruptions"
    sides: tuple[tuple[Cell, ...], ...] = ()

    def find_missing(self, there: Collection[Cell]) -> list[Cell]:
        """Return the cells without which there is no verdict."""
        if not self.sides:
            return [cell for cell in self.cells if cell not in there]
        empty = [side for side in self.sides if not set(side) & set(there)]
        return [cell for side in empty for cell in side]


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


def below(a: Cell, b: Cell, text: str, where: str = "") -> Claim:
    """Return the claim that one error is lower than another."""
    return Claim(text, (a, b), lambda errors: errors[b] - errors[a], where)


def above(a: Cell, b: Cell, text: str, where: str = "") -> Claim:
    """Return the claim that one number is higher than another, where more is better."""
    return Claim(text, (a, b), lambda numbers: numbers[a] - numbers[b], where)


def lowest(a: Cell, others: Sequence[Cell], text: str, where: str = "") -> Claim:
    """Return the claim that one error is lower than all of the others."""
    return Claim(
        text,
        (a, *others),
        lambda errors: np.min([errors[other] for other in others], axis=0) - errors[a],
        where,
    )


def best_below(
    a: Sequence[Cell], b: Sequence[Cell], text: str, where: str = "", margin: float = 0.0
) -> Claim:
    """Return the claim that the lowest error of some is below the lowest of others by a margin.

    Of each side, those that were run are compared.
    """

    def lowest_of(errors: Mapping[Cell, Floats], cells: Sequence[Cell]) -> Floats:
        return np.asarray(np.min([errors[cell] for cell in cells if cell in errors], axis=0))

    return Claim(
        text,
        (*a, *b),
        lambda errors: lowest_of(errors, b) - lowest_of(errors, a) - margin,
        where,
        sides=(tuple(a), tuple(b)),
    )


def larger_gain(a: tuple[Cell, Cell], b: tuple[Cell, Cell], text: str, where: str = "") -> Claim:
    """Return the claim that the error falls more from the first to the second cell of a than of b.

    >>> claim = larger_gain((("x", ""), ("y", "")), (("x", ""), ("z", "")), "y helps more than z")
    >>> errors = {("x", ""): np.array(9.0), ("y", ""): np.array(5.0), ("z", ""): np.array(8.0)}
    >>> float(claim.statistic(errors))
    3.0
    """
    return Claim(
        text,
        tuple(dict.fromkeys((*a, *b))),
        lambda errors: (errors[a[0]] - errors[a[1]]) - (errors[b[0]] - errors[b[1]]),
        where,
    )


def near(cells: Sequence[Cell], margin: float, text: str, where: str = "") -> Claim:
    """Return the claim that several errors lie within so many points of each other."""

    def statistic(errors: Mapping[Cell, Floats]) -> Floats:
        together = [errors[cell] for cell in cells]
        return np.asarray(margin - (np.max(together, axis=0) - np.min(together, axis=0)))

    return Claim(text, tuple(cells), statistic, where)


def steadier(a: Sequence[Cell], b: Sequence[Cell], text: str, where: str = "") -> Claim:
    """Return the claim that some numbers lie closer together than others do."""

    def spread(numbers: Mapping[Cell, Floats], cells: Sequence[Cell]) -> Floats:
        together = [numbers[cell] for cell in cells]
        return np.asarray(np.max(together, axis=0) - np.min(together, axis=0))

    return Claim(text, (*a, *b), lambda numbers: spread(numbers, b) - spread(numbers, a), where)


def judge(claim: Claim, grid: Grid, published: Mapping[Cell, float] | None = None) -> Verdict:
    """Return whether a claim holds in a run.

    Args:
        claim: The claim.
        grid: The numbers of one setup.
        published: The paper's own numbers, as far as they are in the text.
    """
    stated = _in_paper(claim, published or {})
    cells = [cell for cell in claim.cells if grid.cells.get(cell)]
    if missing := claim.find_missing(cells):
        names = "; ".join(" ".join(part for part in cell if part) for cell in missing)
        return Verdict(
            claim.text, grid.name, "cannot be told", published=stated, reason=f"not there: {names}"
        )
    found = align([grid.cells[cell] for cell in cells])
    n_seeds, n_domains = found[0].shape
    if not found[0].size:
        return Verdict(
            claim.text,
            grid.name,
            "cannot be told",
            published=stated,
            reason="the cells have no seed and corruption in common",
        )
    point = claim.statistic(
        {cell: np.asarray(own.mean()) for cell, own in zip(cells, found, strict=True)}
    )
    means = resample(np.stack(found), RESAMPLES, _SEED).T
    draws = claim.statistic(dict(zip(cells, means, strict=True)))
    verdict, confidence, reason = decide(draws, n_seeds * n_domains)
    return Verdict(
        claim.text,
        grid.name,
        verdict,
        confidence,
        float(point),
        n_seeds,
        n_domains,
        claim.units,
        stated,
        reason,
    )


def align(cells: Sequence[Errors]) -> list[Floats]:
    """Return the errors that all cells have in common, each as an array of seeds × domains.

    What would be counted twice is not: severities of one corruption are averaged, and seeds that
    change nothing in any cell, as where neither order nor method draws, are one.
    """
    seeds = [seed for seed in cells[0] if all(seed in errors for errors in cells)]
    every = [errors[seed] for errors in cells for seed in seeds]
    names = [name for name in (every[0] if every else ()) if all(name in own for own in every)]
    domains: dict[str, list[str]] = {}
    for name in names:
        domains.setdefault(name.partition(SEVERITY)[0], []).append(name)
    found = [
        np.array(
            [
                [np.mean([errors[seed][name] for name in own]) for own in domains.values()]
                for seed in seeds
            ]
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


def _in_paper(claim: Claim, published: Mapping[Cell, float]) -> bool | None:
    there = [cell for cell in claim.cells if cell in published]
    if claim.find_missing(there):
        return None
    numbers = {cell: np.asarray(published[cell]) for cell in there}
    return bool(claim.statistic(numbers) > 0)
