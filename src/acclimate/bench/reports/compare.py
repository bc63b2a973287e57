"""Two runs of suites side by side: what changed, with intervals, and whether it may be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acclimate.bench.outcome import Outcome
from acclimate.bench.reports.bootstrap import FEWEST_UNITS, N_RESAMPLES, SEED, Difference, pair
from acclimate.bench.reports.bootstrap import compare as compare_paired
from acclimate.bench.reports.facts import (
    domain_counts,
    find_differences,
    merge_facts,
    origin_facts,
    protocol_facts,
    settings_facts,
)
from acclimate.bench.reports.labels import label_outcomes
from acclimate.bench.reports.notes import format_difference
from acclimate.report.table import ABSENT

if TYPE_CHECKING:
    from rich.console import Console

# Facts that differ between any two runs, and say nothing.
_FLEETING = ("date", "seconds", "started", "finished", "command", "when")


@dataclass(frozen=True, eq=False)
class Pair:
    """A label that both have.

    Attributes:
        group: Of the label.
        label: As the suites call it.
        first: Mean error over what both were measured on, in percent; None if that is nothing.
        second: The same of the other.
        difference: Second minus first, with its interval; None if they share nothing.
        is_same: Whether every domain of every shared seed has the same number of errors.
        protocol: What differs in the protocol; empty if the errors may be compared.
        settings: What differs in hyper-parameters and preparation.
        origin: What differs in versions, machine and the like.
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
class Comparison:
    """What two runs of suites have in common, and what only one of them has.

    Attributes:
        pairs: The labels of both.
        only_first: Jobs that the second has not: label and seed.
        only_second: Jobs that the first has not.
        n_resamples: Of the bootstrap.
    """

    pairs: tuple[Pair, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    n_resamples: int


def compare_suites(
    first: Sequence[Outcome],
    second: Sequence[Outcome],
    n_resamples: int = N_RESAMPLES,
    seed: int = SEED,
) -> Comparison:
    """Return the labels of both, and the jobs of one only.

    Args:
        first: All outcomes of a suite.
        second: All outcomes of another, or of the same after a change.
        n_resamples: Of the paired bootstrap.
        seed: Of its draws.
    """
    rows, others = _rows(first), _rows(second)
    shared = [key for key in rows if key in others]
    pairs = tuple(_pair(key, rows[key], others[key], n_resamples, seed) for key in shared)
    return Comparison(pairs, _left_over(rows, others), _left_over(others, rows), n_resamples)


def show_comparison(
    console: Console, found: Comparison, names: tuple[str, str] = ("A", "B")
) -> None:
    """Print a comparison.

    Args:
        console: Where to.
        found: What to print.
        names: Of the two, such as their folders.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console.print(f"A: {names[0]}", soft_wrap=True)
    console.print(f"B: {names[1]}", soft_wrap=True)
    if found.pairs:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for head in ("method", "A", "B", "B − A", "P(B lower)", "units", "protocol"):
            table.add_column(head, justify="left" if head in ("method", "protocol") else "right")
        for own in found.pairs:
            table.add_row(*map(Text, _cells(own)))
        console.print(table)
        console.print(
            "Mean error in %, over the domains and seeds that both have; difference in points "
            f"with the 95 % interval of a paired bootstrap ({found.n_resamples} resamples, seed "
            f"{SEED}) over seeds and domains, each drawn on their own; over domains where there is "
            "one seed or it changes nothing; over batches where there is one domain besides. Fewer "
            f"than {FEWEST_UNITS} units have no interval, and P(B lower) is at most 1 − 2⁻ⁿ for n "
            "units. Where protocols differ, the errors are of different things.",
            style="dim",
        )
    else:
        console.print("No label is in both.")
    for own in found.pairs:
        for what, differences in (
            ("protocol", own.protocol),
            ("settings", own.settings),
            ("origin", own.origin),
        ):
            if differences:
                console.print(f"{own.name}: {what} of B: {'; '.join(differences)}", soft_wrap=True)
    for name, jobs in (("A", found.only_first), ("B", found.only_second)):
        if jobs:
            console.print(f"only in {name}: {'; '.join(jobs)}", soft_wrap=True)


def _cells(own: Pair) -> tuple[str, ...]:
    equal = "equal" if not own.protocol else "differs: not comparable"
    if own.first is None or own.second is None or own.difference is None:
        return (own.name, *[ABSENT] * 4, "none shared", equal)
    apart = "identical" if own.is_same else format_difference(own.difference)
    chance = ABSENT if own.is_same else f"{own.difference.probability:.3f}"
    units = f"{own.difference.n_units} {own.difference.kind.split()[-1]}"
    return (own.name, f"{own.first:.1f}", f"{own.second:.1f}", apart, chance, units, equal)


def _pair(
    key: tuple[str, str],
    first: Sequence[Outcome],
    second: Sequence[Outcome],
    n_resamples: int,
    seed: int,
) -> Pair:
    units = pair([first, second])
    means = (None, None) if units is None else units.means
    protocols, settings, origins = (
        tuple(merge_facts([make(outcome) for outcome in own]) for own in (first, second))
        for make in (protocol_facts, settings_facts, _origin)
    )
    return Pair(
        group=key[0],
        label=key[1],
        first=None if means[0] is None else float(means[0]),
        second=None if means[1] is None else float(means[1]),
        difference=compare_paired(second, first, n_resamples, seed),
        is_same=units is not None and _is_same(first, second),
        protocol=find_differences(protocols[1], protocols[0]),
        settings=find_differences(settings[1], settings[0]),
        origin=find_differences(origins[1], origins[0]),
    )


def _is_same(first: Sequence[Outcome], second: Sequence[Outcome]) -> bool:
    counts = {outcome.entry.spec.seed: domain_counts(outcome) for outcome in second}
    shared = [outcome for outcome in first if outcome.entry.spec.seed in counts]
    return bool(shared) and all(
        domain_counts(outcome) == counts[outcome.entry.spec.seed] for outcome in shared
    )


def _origin(outcome: Outcome) -> dict[str, str]:
    facts = origin_facts([outcome])
    return {name: text for name, text in facts.items() if not _is_fleeting(name)}


def _is_fleeting(name: str) -> bool:
    return any(word in name.replace(":", "").split() for word in _FLEETING)


def _rows(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], list[Outcome]]:
    groups = dict.fromkeys(outcome.entry.group for outcome in outcomes)
    return {
        (group, label): own
        for group in groups
        for label, own in label_outcomes([o for o in outcomes if o.entry.group == group]).items()
    }


def _left_over(
    rows: dict[tuple[str, str], list[Outcome]], others: dict[tuple[str, str], list[Outcome]]
) -> tuple[str, ...]:
    jobs = []
    for key, own in rows.items():
        there = {outcome.entry.spec.seed for outcome in others.get(key, [])}
        name = f"{key[1]} ({key[0]})" if key[0] else key[1]
        jobs += [f"{name}, seed {o.entry.spec.seed}" for o in own if o.entry.spec.seed not in there]
    return tuple(jobs)
