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
from acclimate.report.summary import identify, label_outcomes
from acclimate.report.table import ABSENT, Cell, Column, Document, Table, format_number, plain
from acclimate.report.tables import format_interval

# Facts that differ between any two runs.
_FLEETING = ("date", "seconds", "started", "finished", "command", "when")
_CAPTION = (
    "Mean error in %, over the domains and seeds that both have; difference in points with the "
    f"95 % interval of a paired bootstrap ({N_RESAMPLES} resamples, seed {SEED}) over seeds and "
    f"domains, or over batches where there is one domain. Fewer than {FEWEST_UNITS} units have no "
    "interval, and P(B lower) is at most 1 − 2⁻ⁿ for n units."
)

Rows = Mapping[tuple[str, str], list[Outcome]]


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
    def cells(self) -> tuple[Cell, ...]:
        """The row of a table."""
        name = _name(self.group, self.label)
        state = "differs: not comparable" if self.protocol else "equal"
        apart = self.difference
        if self.first is None or self.second is None or apart is None:
            return tuple(map(plain, (name, *[ABSENT] * 4, "none shared", state)))
        found = (format_interval(apart), f"{apart.probability:.3f}")
        numbers = (Cell(format_number(own), own) for own in (self.first, self.second))
        units = f"{apart.n_units} {apart.kind.split()[-1]}"
        about = (*(("identical", ABSENT) if self.is_same else found), units, state)
        return (plain(name), *numbers, *map(plain, about))


@dataclass(frozen=True, eq=False)
class SuiteComparison:
    """The labels of both suites, and the jobs (label and seed) that only one of them has."""

    pairs: tuple[Pair, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    def to_document(self, names: tuple[str, str] = ("A", "B")) -> Document:
        """Return the errors of both, their difference, and the notes on them.

        The names are those of the two, such as their folders.
        """
        notes = [
            f"{_name(own.group, own.label)}: {what} of B: {'; '.join(apart)}"
            for own in self.pairs
            for what in ("protocol", "settings", "origin")
            if (apart := getattr(own, what))
        ]
        both = (("A", self.only_first), ("B", self.only_second))
        notes += [f"only in {name}: {'; '.join(jobs)}" for name, jobs in both if jobs]
        about = (f"A: {names[0]}", f"B: {names[1]}")
        if not self.pairs:
            return Document("", (), ("No label is in both.",), (*about, *notes))
        heads = ("A", "B", "B − A", "P(B lower)", "units")
        columns = (Column("method", "label"), *map(Column, heads), Column("protocol", "words"))
        rows = tuple(own.cells for own in self.pairs)
        table = Table(columns, rows, caption=_CAPTION, notes=tuple(notes))
        return Document("", (("", (table,)),), notes=about)


def compare_suites(first: Sequence[Outcome], second: Sequence[Outcome]) -> SuiteComparison:
    """Return the labels of both suites, and the jobs of one only."""
    rows, others = _label(first), _label(second)
    pairs = tuple(_pair(*key, rows[key], others[key]) for key in rows if key in others)
    return SuiteComparison(pairs, _left_over(rows, others), _left_over(others, rows))


def _label(outcomes: Sequence[Outcome]) -> Rows:
    labelled = label_outcomes(outcomes, identify(own.entry for own in outcomes))
    return {(group, label): o for group, own in labelled.items() for label, o in own.items()}


def _left_over(rows: Rows, others: Rows) -> tuple[str, ...]:
    there = {(key, own.entry.spec.seed) for key, every in others.items() for own in every}
    jobs = [(key, own.entry.spec.seed) for key, every in rows.items() for own in every]
    return tuple(f"{_name(*job[0])}, seed {job[1]}" for job in jobs if job not in there)


def _pair(group: str, label: str, first: Sequence[Outcome], second: Sequence[Outcome]) -> Pair:
    units = pair([first, second])
    counts, others = (
        {own.entry.spec.seed: domain_counts(own) for own in both} for both in (first, second)
    )
    shared = counts.keys() & others.keys()
    protocol, settings, origin = (
        find_differences(*(merge_facts([make(o) for o in own]) for own in (second, first)))
        for make in (protocol_facts, settings_facts, _origin)
    )
    return Pair(
        group,
        label,
        first=None if units is None else float(units.means[0]),
        second=None if units is None else float(units.means[1]),
        difference=None if units is None else units.compare(units.resample(), 1, 0),
        is_same=bool(units and shared) and all(counts[seed] == others[seed] for seed in shared),
        protocol=protocol,
        settings=settings,
        origin=origin,
    )


def _origin(outcome: Outcome) -> Facts:
    facts = origin_facts([outcome]).items()
    return {n: text for n, text in facts if not set(n.replace(":", "").split()) & set(_FLEETING)}


def _name(group: str, label: str) -> str:
    return f"{label} ({group})" if group else label
