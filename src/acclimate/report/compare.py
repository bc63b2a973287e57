"""Two runs of suites side by side: what changed, with intervals, and whether it is comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acclimate.bench.suite import Outcome
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
from acclimate.report.table import ABSENT, Cell, Column, Document, Table, plain
from acclimate.report.tables import format_difference

Rows = Mapping[tuple[str, str], list[Outcome]]

# Facts that differ between any two runs.
_FLEETING = ("date", "seconds", "started", "finished", "command", "when")


@dataclass(frozen=True, eq=False)
class Pair:
    """A label that both suites have, and what is different.

    Attributes:
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
        return _name(self.group, self.label)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The row of a table."""
        state = "equal" if not self.protocol else "differs: not comparable"
        apart = self.difference
        if self.first is None or self.second is None or apart is None:
            return tuple(map(plain, (self.name, *[ABSENT] * 4, "none shared", state)))
        found = ["identical", ABSENT]
        if not self.is_same:
            found = [format_difference(apart), f"{apart.probability:.3f}"]
        units = f"{apart.n_units} {apart.kind.split()[-1]}"
        numbers = (Cell(f"{own:.1f}", own) for own in (self.first, self.second))
        return (plain(self.name), *numbers, *map(plain, (*found, units, state)))


@dataclass(frozen=True, eq=False)
class SuiteComparison:
    """The labels of both suites, and the jobs (label and seed) that only one of them has."""

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
            for what in ("protocol", "settings", "origin")
            if (apart := getattr(own, what))
        ]
        both = (("A", self.only_first), ("B", self.only_second))
        notes += [f"only in {name}: {'; '.join(jobs)}" for name, jobs in both if jobs]
        caption = (
            "Mean error in %, over the domains and seeds that both have; difference in points with "
            f"the 95 % interval of a paired bootstrap ({N_RESAMPLES} resamples, seed {SEED}) over "
            "seeds and domains, or over batches where there is one domain. Fewer than "
            f"{FEWEST_UNITS} units have no interval, and P(B lower) is at most 1 − 2⁻ⁿ for n units."
        )
        rows = tuple(own.cells for own in self.pairs)
        return Table(columns, rows, caption=caption, notes=tuple(notes))

    def to_document(self, names: tuple[str, str] = ("A", "B")) -> Document:
        """Return the table; the names are those of the two, such as their folders."""
        table, both = self.to_table(), (f"A: {names[0]}", f"B: {names[1]}")
        if table.rows:
            return Document("", (("", (table,)),), notes=both)
        return Document("", (), ("No label is in both.",), (*both, *table.notes))


def compare_suites(first: Sequence[Outcome], second: Sequence[Outcome]) -> SuiteComparison:
    """Return the labels of both suites, and the jobs of one only."""
    rows, others = _label(first), _label(second)
    pairs = tuple(_pair(key, rows[key], others[key]) for key in rows if key in others)
    return SuiteComparison(pairs, _left_over(rows, others), _left_over(others, rows))


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
        name = _name(group, label)
        jobs += [f"{name}, seed {o.entry.spec.seed}" for o in own if o.entry.spec.seed not in there]
    return tuple(jobs)


def _name(group: str, label: str) -> str:
    return f"{label} ({group})" if group else label
