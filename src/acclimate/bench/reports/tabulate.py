"""The table of a report: rows that may be compared, what sets the others apart, and the best."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from acclimate.bench.outcome import Entry, Outcome
from acclimate.bench.reports.facts import (
    Facts,
    domain_errors,
    merge_facts,
    protocol_facts,
    split_domain,
)
from acclimate.bench.reports.labels import (
    describe_settings,
    find_unfinished,
    identify,
    label_outcomes,
    name_kind,
)
from acclimate.bench.reports.seeds import ignores_seed, is_source
from acclimate.errors import BadInput
from acclimate.methods import get_method
from acclimate.metrics import Record
from acclimate.report.table import BASELINE, Measure


@dataclass(frozen=True, eq=False)
class Row:
    """One label of a group: jobs that differ in the seed only.

    Attributes:
        label: As the suite calls it, with what varies if the suite gave several rows one label.
        outcomes: One a seed, seeds ascending.
        errors: In percent, by column; a column is a corruption, over all its severities.
        mean: In percent, over domains.
        missing: Seeds that the suite asks for and that are not there; none if the seed changes
            nothing.
        protocol: Place of its protocol in that of the group: 0 for the common one.
        gain: Mean error minus that of the source row over the seeds that both have, in points; None
            where there is no such row, or no such seed.
        miou: Mean intersection over union in percent, over domains; None if of no pixels.
        n_settings: Hyper-parameter settings of its method among the rows of its protocol.
    """

    label: str
    outcomes: tuple[Outcome, ...]
    errors: dict[str, Measure]
    mean: Measure
    missing: tuple[int, ...] = ()
    protocol: int = 0
    gain: float | None = None
    miou: Measure | None = None
    n_settings: int = 1

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.outcomes[0].entry.spec.method

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that every number is a mean over."""
        return tuple(outcome.entry.spec.seed for outcome in self.outcomes)

    @property
    def is_oracle(self) -> bool:
        """Whether the method learned from labels, so that it never is the best."""
        return get_method(self.method).card.is_oracle

    @property
    def is_reference(self) -> bool:
        """Whether this is the source model, which the others are compared with."""
        return is_source(self.outcomes[0].entry.spec)

    @property
    def ignores_seed(self) -> bool:
        """Whether the seed changes no error."""
        return ignores_seed(self.outcomes)

    @property
    def kind(self) -> str:
        """The method, with what is laid over it, whatever the settings of both."""
        return name_kind(self.outcomes[0].entry.spec)

    @property
    def is_one_of_several(self) -> bool:
        """Whether the table has other settings of the same method, so that one can be picked."""
        return self.n_settings > 1

    @property
    def is_complete(self) -> bool:
        """Whether no seed is missing."""
        return not self.missing

    @property
    def competes(self) -> bool:
        """Whether it may be the best of the rows of its protocol."""
        return self.is_complete and not self.is_oracle

    @property
    def mark(self) -> str:
        """A letter for another protocol than the common one, and daggers for what limits a row."""
        daggers = "†" * bool(self.missing) + "‡" * self.is_one_of_several
        return name_mark(self.protocol) + daggers

    @property
    def name(self) -> str:
        """The label, and whether it is an oracle or a reconstruction."""
        kind = get_method(self.method)
        words = ["oracle"] * kind.card.is_oracle + ["reconstruction"] * bool(
            kind.card.reconstruction
        )
        return " ".join([self.label, *(f"({word})" for word in words if word not in self.label)])

    @property
    def ms_per_image(self) -> float:
        """Time of a call over its images: the median over all batches of all seeds."""
        return median_ms(record for outcome in self.outcomes for record in outcome.result.counted)

    @property
    def estimated(self) -> Measure | None:
        """Mean error in percent as the guard estimated it; None if there is no estimate."""
        results = [outcome.result for outcome in self.outcomes]
        found = [r.estimated_error for r in results if r.estimated_error is not None]
        return measure([100 * share for share in found]) if found else None

    @property
    def by_source(self) -> float | None:
        """Share of images in percent that the source model answered; None without a guard."""
        shares = [outcome.result.by_source for outcome in self.outcomes]
        found = [share for share in shares if share is not None]
        return 100 * statistics.fmean(found) if found else None

    @property
    def peak_memory(self) -> int | None:
        """Largest memory of any job, in bytes; None if it was not measured."""
        found = [outcome.result.peak_memory for outcome in self.outcomes]
        return max((size for size in found if size is not None), default=None)


@dataclass(frozen=True, eq=False)
class Group:
    """Rows that stand in one table, such as those of one backbone.

    Attributes:
        name: As the suite calls it; may be empty.
        columns: Names of the corruptions, or of whatever domains there are, in the stream's order.
        rows: The source row first, then in the order of the suite.
        protocols: The facts of each protocol among the rows, the common one first.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    protocols: tuple[Facts, ...]

    @property
    def n_seeds(self) -> int:
        """Most seeds of any row."""
        return max(len(row.seeds) for row in self.rows)

    @property
    def has_pixels(self) -> bool:
        """Whether every pixel was predicted, so that there are overlaps."""
        return any(row.miou is not None for row in self.rows)

    @property
    def has_guard(self) -> bool:
        """Whether a row was run with a guard, so that there are estimates."""
        return any(row.by_source is not None for row in self.rows)

    def competing(self, protocol: int) -> tuple[Row, ...]:
        """Return the complete rows of a protocol without oracles, the lowest error first."""
        rows = [row for row in self.rows if row.protocol == protocol and row.competes]
        return tuple(sorted(rows, key=lambda row: row.mean.mean))

    def shares_seeds(self, protocol: int) -> bool:
        """Tell whether the rows that compete are means over the same seeds."""
        rows = [row for row in self.competing(protocol) if not row.ignores_seed]
        return len({row.seeds for row in rows}) <= 1

    def is_best(self, row: Row, column: str | None) -> bool:
        """Tell whether a row shows the lowest error of its protocol, as far as is shown.

        None does where rows are means over different seeds.

        Args:
            row: Of this group.
            column: None for the mean.
        """
        rivals = self.competing(row.protocol)
        if row not in rivals or len(rivals) < 2 or get_error(row, column) is None:
            return False
        if not self.shares_seeds(row.protocol):
            return False
        # Compared as shown: two rows that read the same are equally good.
        shown = [round(m.mean, 1) for m in (get_error(r, column) for r in rivals) if m is not None]
        own = get_error(row, column)
        return own is not None and round(own.mean, 1) == min(shown)


@dataclass(frozen=True, eq=False)
class Summary:
    """All that a report shows in tables.

    Attributes:
        title: Of the suite.
        selection: Name of the rule that hyper-parameters were chosen by, or a sentence.
        notes: What a reader must know, in the words of the suite.
        groups: In the order of the suite.
        unfinished: The jobs of the suite that have no outcome.
    """

    title: str
    selection: str
    notes: str
    groups: tuple[Group, ...]
    unfinished: tuple[Entry, ...] = ()

    @property
    def rows(self) -> Iterator[tuple[Group, Row]]:
        """All rows, with their group."""
        return ((group, row) for group in self.groups for row in group.rows)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """All jobs, in the order of the rows."""
        return tuple(outcome for _, row in self.rows for outcome in row.outcomes)


def tabulate(
    outcomes: Sequence[Outcome],
    *,
    title: str = "",
    selection: str = "paper",
    notes: str = "",
    entries: Sequence[Entry] = (),
) -> Summary:
    """Return the tables of jobs that have reached their end.

    Args:
        outcomes: In the order of the table.
        title: Of the suite.
        selection: Name of the rule that hyper-parameters were chosen by, or a sentence.
        notes: What a reader must know.
        entries: All jobs of the suite, so that those that are missing can be told. If there are
            none, a row is expected to have all seeds that any row of its protocol has.

    Raises:
        BadInput: There are no outcomes, or different jobs cannot be told apart by their labels.
    """
    if not outcomes:
        raise BadInput("no_finished_job", "Expected at least one finished job, found none.")
    unfinished = find_unfinished(outcomes, entries)
    groups = tuple(
        _group(
            name,
            [outcome for outcome in outcomes if outcome.entry.group == name],
            [entry for entry in entries if entry.group == name],
        )
        for name in dict.fromkeys(outcome.entry.group for outcome in outcomes)
    )
    return Summary(title, selection, notes, groups, unfinished)


def name_mark(protocol: int) -> str:
    """Return the letter of a protocol other than the common one.

    >>> name_mark(0), name_mark(1), name_mark(27)
    ('', 'a', 'aa')
    """
    return "" if protocol == 0 else chr(97 + (protocol - 1) % 26) * (1 + (protocol - 1) // 26)


def get_error(row: Row, column: str | None) -> Measure | None:
    """Return the error of a row in a column, or its mean; None if it was not measured there."""
    return row.mean if column is None else row.errors.get(column)


def measure(values: Sequence[float]) -> Measure:
    """Return mean and sample standard deviation; no deviation of one value."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Measure(statistics.fmean(values), deviation)


def median_ms(records: Iterable[Record]) -> float:
    """Return the median over batches of the time per image; a batch that had to wait counts once.

    Args:
        records: At least one.
    """
    return statistics.median(record.ms / record.n_images for record in records)


def column_errors(outcome: Outcome) -> dict[str, float]:
    """Return the mean error over the severities of each corruption, in percent."""
    by_column: dict[str, list[float]] = {}
    for name, error in domain_errors(outcome).items():
        by_column.setdefault(split_domain(name, outcome.entry.spec)[0], []).append(error)
    return {name: statistics.fmean(errors) for name, errors in by_column.items()}


def _group(name: str, outcomes: Sequence[Outcome], entries: Sequence[Entry]) -> Group:
    found = label_outcomes(outcomes)
    facts = {label: merge_facts([protocol_facts(o) for o in own]) for label, own in found.items()}
    protocols = _order_protocols(facts, found)
    rows = []
    for label, own in found.items():
        same = [other for name, other in found.items() if facts[name] == facts[label]]
        seeds = _list_asked(own[0].entry, entries) or {
            outcome.entry.spec.seed for other in same for outcome in other
        }
        missing = set() if ignores_seed(own) else seeds - {o.entry.spec.seed for o in own}
        rows.append(_row(label, own, protocols.index(facts[label]), tuple(sorted(missing))))
    rows = _count_settings(rows)
    rows.sort(key=lambda row: not row.is_reference)
    columns = dict.fromkeys(column for row in rows for column in row.errors)
    return Group(name, tuple(columns), tuple(_add_gains(rows)), tuple(protocols))


def _count_settings(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, each with how many settings of its method there are in its protocol."""
    found: dict[tuple[int, str], set[str]] = {}
    for row in rows:
        settings = describe_settings(row.outcomes[0].entry.spec)
        found.setdefault((row.protocol, row.kind), set()).add(settings)
    return [replace(row, n_settings=len(found[row.protocol, row.kind])) for row in rows]


def _list_asked(own: Entry, entries: Sequence[Entry]) -> set[int]:
    """Return the seeds that a suite asks for in a row."""
    same = identify(own, with_seed=False)
    named = [entry for entry in entries if entry.label == own.label]
    return {entry.spec.seed for entry in named if identify(entry, with_seed=False) == same}


def _row(label: str, own: Sequence[Outcome], protocol: int, missing: tuple[int, ...]) -> Row:
    # The same numbers again have no spread.
    counted = own[:1] if ignores_seed(own) else own
    errors = [column_errors(outcome) for outcome in counted]
    overlaps = [outcome.miou for outcome in counted if outcome.miou is not None]
    columns = dict.fromkeys(column for found in errors for column in found)
    return Row(
        label=label,
        outcomes=tuple(own),
        errors={c: measure([found[c] for found in errors if c in found]) for c in columns},
        mean=measure([outcome.error for outcome in counted]),
        miou=measure(overlaps) if overlaps else None,
        missing=missing,
        protocol=protocol,
    )


def _add_gains(rows: Sequence[Row]) -> Iterator[Row]:
    for row in rows:
        same = [r for r in rows if r.is_reference and r.protocol == row.protocol]
        if row.is_reference or not same:
            yield row
            continue
        own, base = ({o.entry.spec.seed: o.error for o in r.outcomes} for r in (row, same[0]))
        if same[0].ignores_seed:
            base = dict.fromkeys(own, same[0].mean.mean)
        elif row.ignores_seed:
            own = dict.fromkeys(base, row.mean.mean)
        apart = [own[seed] - base[seed] for seed in own if seed in base]
        yield replace(row, gain=statistics.fmean(apart) if apart else None)


def _order_protocols(facts: dict[str, Facts], found: dict[str, list[Outcome]]) -> list[Facts]:
    """Return the protocols: the one of most rows first, among equals that of the source row."""
    distinct: list[Facts] = []
    for own in facts.values():
        if own not in distinct:
            distinct.append(own)

    def rank(protocol: Facts) -> tuple[int, bool]:
        labels = [label for label, own in facts.items() if own == protocol]
        has_source = any(found[label][0].entry.spec.method == BASELINE for label in labels)
        return (len(labels), has_source)

    common = max(distinct, key=rank)  # the first of equals
    return [common, *(protocol for protocol in distinct if protocol != common)]
