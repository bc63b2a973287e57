"""Two runs of suites side by side: what changed, with intervals, and whether it is comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acclimate.bench.outcome import Outcome
from acclimate.report.facts import (
    Facts,
    domain_counts,
    find_differences,
    merge_facts,
    origin_facts,
    protocol_facts,
    settings_facts,
)
from acclimate.report.stats import FEWEST_UNITS, N_RESAMPLES, SEED, Difference, pair
from acclimate.report.summary import label_outcomes
from acclimate.report.table import ABSENT, Cell, Column, Table, plain
from acclimate.report.tables import format_difference

if TYPE_CHECKING:
    from rich.console import Console

Rows = Mapping[tuple[str, str], list[Outcome]]

# Facts that differ between any two runs.
_FLEETING = ("date", "seconds", "started", "finished", "command", "when")


@dataclass(frozen=True, eq=False)
class Pair:
    """A label that both suites have.

    Attributes:
        group: Of the label.
        label: As the suites name it.
        first: Mean error over what both were measured on, in percent; None if that is nothing.
        second: The same of the other.
        difference: Second minus first, with its interval; None if they share nothing.
        is_same: Whether every domain of every shared seed has the same number of errors.
        protocol: Differences of the protocol; empty if the errors are comparable.
        settings: Differences of hyper-parameters and preparation.
        origin: Differences of versions, machine and the like.
    """

    group: str
    label: str
    first: float | None
    second: float | None
    difference: Difference | None
    is_same: bool
    protocol: tuple[str, ...]
    settings: tuple[str, ...]
    origin: tuple[str, ...]

    @property
    def name(self) -> str:
        """The label, with the group if there is one."""
        return f"{self.label} ({self.group})" if self.group else self.label


@dataclass(frozen=True, eq=False)
class SuiteComparison:
    """What two runs of suites have in common, and what only one of them has.

    Attributes:
        pairs: The labels of both.
        only_first: Jobs that the second does not have: label and seed.
        only_second: Jobs that the first does not have.
    """

    pairs: tuple[Pair, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    def to_table(self) -> Table:
        """Return the errors of both, their difference, and the notes on them."""
        heads = ("A", "B", "B − A", "P(B lower)", "units")
        columns = (Column("method", "label"), *map(Column, heads), Column("protocol", "words"))
        notes = [
            f"{own.name}: {what} of B: {'; '.join(apart)}"
            for own in self.pairs
            for what, apart in vars(own).items()
            if what in ("protocol", "settings", "origin") and apart
        ]
        both = (("A", self.only_first), ("B", self.only_second))
        notes += [f"only in {name}: {'; '.join(jobs)}" for name, jobs in both if jobs]
        caption = (
            "Mean error in %, over the domains and seeds that both have; difference in points with "
            f"the 95 % interval of a paired bootstrap ({N_RESAMPLES} resamples, seed {SEED}) over "
            "seeds and domains, or over batches where there is one domain. Fewer than "
            f"{FEWEST_UNITS} units have no interval, and P(B lower) is at most 1 − 2⁻ⁿ for n units."
        )
        rows = tuple(_cells(own) for own in self.pairs)
        return Table(columns, rows, caption=caption, notes=tuple(notes))


def compare_suites(first: Sequence[Outcome], second: Sequence[Outcome]) -> SuiteComparison:
    """Return the labels of both suites, and the jobs of one only."""
    rows, others = _label(first), _label(second)
    pairs = tuple(_pair(key, rows[key], others[key]) for key in rows if key in others)
    return SuiteComparison(pairs, _left_over(rows, others), _left_over(others, rows))


def show_comparison(
    console: Console, found: SuiteComparison, names: tuple[str, str] = ("A", "B")
) -> None:
    """Print a comparison; the names are those of the two, such as their folders."""
    for letter, name in zip("AB", names, strict=True):
        console.print(f"{letter}: {name}", soft_wrap=True)
    table = found.to_table()
    if table.rows:
        table.show(console)
    else:
        console.print("No label is in both.")
        for note in table.notes:
            console.print(note, soft_wrap=True)


def _cells(own: Pair) -> tuple[Cell, ...]:
    state = "equal" if not own.protocol else "differs: not comparable"
    if own.first is None or own.second is None or own.difference is None:
        return tuple(map(plain, (own.name, *[ABSENT] * 4, "none shared", state)))
    apart = "identical" if own.is_same else format_difference(own.difference)
    chance = ABSENT if own.is_same else f"{own.difference.probability:.3f}"
    units = f"{own.difference.n_units} {own.difference.kind.split()[-1]}"
    numbers = (Cell(f"{own.first:.1f}", own.first), Cell(f"{own.second:.1f}", own.second))
    return (plain(own.name), *numbers, *map(plain, (apart, chance, units, state)))


def _pair(key: tuple[str, str], first: Sequence[Outcome], second: Sequence[Outcome]) -> Pair:
    units = pair([second, first])
    counts = {outcome.entry.spec.seed: domain_counts(outcome) for outcome in second}
    shared = [outcome for outcome in first if outcome.entry.spec.seed in counts]
    differences = []
    for make in (protocol_facts, settings_facts, _origin):
        before, after = (merge_facts([make(o) for o in own]) for own in (first, second))
        differences.append(find_differences(after, before))
    return Pair(
        *key,
        first=None if units is None else float(units.means[1]),
        second=None if units is None else float(units.means[0]),
        difference=None if units is None else units.compare(units.resample(), 0, 1),
        is_same=bool(units and shared)
        and all(domain_counts(outcome) == counts[outcome.entry.spec.seed] for outcome in shared),
        protocol=differences[0],
        settings=differences[1],
        origin=differences[2],
    )


def _origin(outcome: Outcome) -> Facts:
    facts = origin_facts([outcome]).items()
    return {
        name: text
        for name, text in facts
        if not any(word in name.replace(":", "").split() for word in _FLEETING)
    }


def _label(outcomes: Sequence[Outcome]) -> Rows:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.entry.group, []).append(outcome)
    return {
        (group, label): own
        for group, every in groups.items()
        for label, own in label_outcomes(every).items()
    }


def _left_over(rows: Rows, others: Rows) -> tuple[str, ...]:
    jobs = []
    for (group, label), own in rows.items():
        there = {outcome.entry.spec.seed for outcome in others.get((group, label), [])}
        name = f"{label} ({group})" if group else label
        jobs += [f"{name}, seed {o.entry.spec.seed}" for o in own if o.entry.spec.seed not in there]
    return tuple(jobs)
