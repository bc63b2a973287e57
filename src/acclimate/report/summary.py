"""From the outcomes of jobs to rows: what is averaged, compared and missing."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from acclimate.bench.job import JobSpec
from acclimate.bench.suite import Entry, Outcome
from acclimate.errors import BadInput
from acclimate.methods import get_method
from acclimate.metrics import Record
from acclimate.report.facts import (
    Facts,
    domain_errors,
    ignores_seed,
    is_source,
    merge_facts,
    protocol_facts,
    split_domain,
)
from acclimate.report.stats import Measure, Ranking, rank


@dataclass(frozen=True, eq=False)
class Row:
    """Jobs of a group that differ in the seed only.

    Attributes:
        label: As the suite names it, with what varies if several jobs have one label.
        outcomes: One for each seed, seeds ascending.
        errors: In percent, by column; a column is a corruption, over all its severities.
        mean: In percent, over domains.
        missing: Seeds that the suite asks for and that have no outcome; none if the seed changes
            nothing.
        protocol: Index of its protocol in the group: 0 for the common one.
        gain: Mean error minus that of the source row over the seeds that both have, in points; None
            if there is no such row, or no such seed.
        n_settings: Number of hyper-parameter settings of its method among the rows of its protocol.
    """

    label: str
    outcomes: tuple[Outcome, ...]
    errors: Mapping[str, Measure]
    mean: Measure
    missing: tuple[int, ...] = ()
    protocol: int = 0
    gain: float | None = None
    n_settings: int = 1

    @property
    def spec(self) -> JobSpec:
        """The job of its first seed."""
        return self.outcomes[0].entry.spec

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.spec.method

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that every number is a mean over."""
        return tuple(outcome.entry.spec.seed for outcome in self.outcomes)

    @property
    def is_oracle(self) -> bool:
        """Whether the method learned from labels, so that it does not compete."""
        return get_method(self.method).card.is_oracle

    @property
    def is_reference(self) -> bool:
        """Whether this is the source model, which the others are compared with."""
        return is_source(self.spec)

    @cached_property
    def ignores_seed(self) -> bool:
        """Whether the seed changes no error."""
        return ignores_seed(self.outcomes)

    @property
    def kind(self) -> str:
        """The method with its terms, whatever the settings of both."""
        return " + ".join([self.method, *map(str.upper, self.spec.terms)])

    @property
    def counted(self) -> tuple[Outcome, ...]:
        """The outcomes that numbers are means over: if the seed changes nothing, one."""
        return self.outcomes[:1] if self.ignores_seed else self.outcomes

    @property
    def is_one_of_several(self) -> bool:
        """Whether the table has other settings of the same method, so that one can be picked."""
        return self.n_settings > 1

    @property
    def mark(self) -> str:
        """A letter for another protocol than the common one, and daggers for what limits a row."""
        daggers = "†" * bool(self.missing) + "‡" * self.is_one_of_several
        return name_mark(self.protocol) + daggers

    @property
    def about(self) -> str:
        """Whether the method is an oracle or a reconstruction, unless the label says so."""
        card = get_method(self.method).card
        words = ["oracle"] * card.is_oracle + ["reconstruction"] * bool(card.reconstruction)
        return " ".join(f"({word})" for word in words if word not in self.label)

    @property
    def ms_per_image(self) -> float:
        """Time of a call divided by its images: the median over all batches of all seeds."""
        return median_ms(record for outcome in self.outcomes for record in outcome.result.counted)

    @property
    def peak_memory(self) -> int | None:
        """Largest memory of any job, in bytes; None if it was not measured for it alone."""
        alone = [own for own in self.outcomes if not own.provenance.get("side_by_side")]
        found = [outcome.result.peak_memory for outcome in alone]
        return max((size for size in found if size is not None), default=None)

    @property
    def miou(self) -> Measure | None:
        """Mean intersection over union in percent, over domains; None if not of pixels."""
        return self.measure(lambda outcome: outcome.miou)

    @property
    def estimated(self) -> Measure | None:
        """Mean error in percent as the guard estimated it; None if there is no estimate."""
        return self.measure(lambda own: own.result.estimated_error, every=True, scale=100)

    @property
    def by_source(self) -> float | None:
        """Share of images in percent that the source model answered; None without a guard."""
        found = self.measure(lambda own: own.result.by_source, every=True, scale=100)
        return None if found is None else found.mean

    def measure(
        self, get: Callable[[Outcome], float | None], *, every: bool = False, scale: float = 1
    ) -> Measure | None:
        """Return mean and deviation of a number over the outcomes that have it; None if none.

        If the seed changes nothing, the first outcome is taken, unless `every` one is to count.
        """
        found = [get(own) for own in (self.outcomes if every else self.counted)]
        values = [scale * value for value in found if value is not None]
        return Measure.of(values) if values else None

    def severity_errors(self) -> dict[int, Measure]:
        """Return the mean error over corruptions at each severity."""
        found = _gather_errors(self.counted, 1)
        found.pop(None, None)
        return {severity: Measure.of(found[severity]) for severity in sorted(found)}

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON types."""
        first = self.outcomes[0]
        several = {"miou": self.miou, "estimated": self.estimated}
        return {
            "method": self.method,
            "label": self.label,
            "group": first.entry.group,
            "seeds": list(self.seeds),
            "n_images": first.result.n_images // max(1, len(first.result.error_by_domain)),
            "errors": {name: asdict(own) for name, own in self.errors.items()},
            "mean": asdict(self.mean),
            "gain": self.gain,
            "ms_per_image": self.ms_per_image,
            **{name: None if own is None else asdict(own) for name, own in several.items()},
            "by_source": self.by_source,
        }


@dataclass(frozen=True, eq=False)
class Group:
    """Rows of one table, such as those of one backbone.

    Attributes:
        name: As the suite names it; may be empty.
        columns: Names of the corruptions, or of other domains, in the stream's order.
        rows: The source row first, then in the order of the suite.
        protocols: The facts of each protocol among the rows, the common one first.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    protocols: tuple[Facts, ...]

    @property
    def n_seeds(self) -> int:
        """Largest number of seeds of any row."""
        return max(len(row.seeds) for row in self.rows)

    @cached_property
    def has_pixels(self) -> bool:
        """Whether every pixel was predicted, so that there are overlaps."""
        return any(row.miou is not None for row in self.rows)

    @property
    def drawn(self) -> tuple[Row, ...]:
        """The rows of the common protocol, which may share a chart, lowest error first."""
        return _ascending(row for row in self.rows if row.protocol == 0)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """All jobs, in the order of the rows."""
        return tuple(outcome for row in self.rows for outcome in row.outcomes)

    def competing(self, protocol: int) -> tuple[Row, ...]:
        """Return the complete rows of a protocol without oracles, the lowest error first."""
        own = (row for row in self.rows if row.protocol == protocol)
        return _ascending(row for row in own if not row.missing and not row.is_oracle)

    def shares_seeds(self, protocol: int) -> bool:
        """Whether the rows that compete are means over the same seeds."""
        rows = [row for row in self.competing(protocol) if not row.ignores_seed]
        return len({row.seeds for row in rows}) <= 1

    @cached_property
    def rankings(self) -> tuple[Ranking, ...]:
        """A ranking for each protocol that has at least two rows to compare."""
        found = (rank(self.competing(protocol)) for protocol in range(len(self.protocols)))
        return tuple(ranking for ranking in found if ranking is not None)


@dataclass(frozen=True, eq=False)
class Summary:
    """What a report shows.

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
        return tuple(outcome for group in self.groups for outcome in group.outcomes)


def summarize(
    outcomes: Sequence[Outcome],
    *,
    title: str = "",
    selection: str = "paper",
    notes: str = "",
    entries: Sequence[Entry] = (),
) -> Summary:
    """Return the rows of jobs that are finished.

    Args:
        outcomes: In the order of the table.
        title: Of the suite.
        selection: Name of the rule that hyper-parameters were chosen by, or a sentence.
        notes: What a reader must know.
        entries: All jobs of the suite, to find those that are missing. If there are none, a row is
            expected to have all seeds that any row of its protocol has.

    Raises:
        BadInput: There are no outcomes, or different jobs cannot be distinguished by their labels.
    """
    if not outcomes:
        raise BadInput("no_finished_job", "Expected at least one finished job, found none.")
    keys = identify([*entries, *(own.entry for own in outcomes)])
    done = {(keys[id(own.entry)], own.entry.spec.seed) for own in outcomes}
    asked: dict[str, set[int]] = {}
    for entry in entries:
        asked.setdefault(keys[id(entry)], set()).add(entry.spec.seed)
    unfinished = [own for own in entries if (keys[id(own)], own.spec.seed) not in done]
    labelled = label_outcomes(outcomes, keys).items()
    groups = (_group(name, own, asked, keys) for name, own in labelled)
    return Summary(title, selection, notes, tuple(groups), tuple(unfinished))


def identify(entries: Iterable[Entry]) -> dict[int, str]:
    """Return by the id of each entry what entries share that differ in the seed only."""
    found = {}
    for number, entry in {id(entry): entry for entry in entries}.items():
        spec = {name: value for name, value in entry.spec.to_dict().items() if name != "seed"}
        found[number] = json.dumps([entry.group, entry.label, spec], sort_keys=True)
    return found


def label_outcomes(
    outcomes: Sequence[Outcome], keys: Mapping[int, str]
) -> dict[str, dict[str, list[Outcome]]]:
    """Return the outcomes of each row by group and label, seeds ascending; labels are made unique.

    `keys` are those of `identify`.
    """
    variants: dict[tuple[str, str], dict[str, dict[int, Outcome]]] = {}
    for outcome in outcomes:
        entry = outcome.entry
        kinds = variants.setdefault((entry.group, entry.label), {})
        # A job that two rows of a suite share may come twice: the same numbers count once.
        kinds.setdefault(keys[id(entry)], {}).setdefault(entry.spec.seed, outcome)
    found: dict[str, dict[str, list[Outcome]]] = {}
    for (group, label), kinds in variants.items():
        rows = [[own[seed] for seed in sorted(own)] for own in kinds.values()]
        axes = [row[0].entry.axes for row in rows]
        every = dict.fromkeys(name for own in axes for name in own if name != "seed")
        varying = [name for name in every if len({str(own.get(name)) for own in axes}) > 1]
        for row, at in zip(rows, axes, strict=True):
            name = ", ".join([label, *(f"{axis} {at[axis]}" for axis in varying if axis in at)])
            if name in found.setdefault(group, {}):
                raise BadInput(
                    "duplicate",
                    f'Two different jobs in the group "{group}" have the name "{name}", so their '
                    "results would be mixed. Give them different labels.",
                    name=name,
                )
            found[group][name] = row
    return found


def name_mark(protocol: int) -> str:
    """Return the letter of a protocol other than the common one.

    >>> name_mark(0), name_mark(1), name_mark(27)
    ('', 'a', 'aa')
    """
    return "" if protocol == 0 else chr(97 + (protocol - 1) % 26) * (1 + (protocol - 1) // 26)


def median_ms(records: Iterable[Record]) -> float:
    """Return the median over batches of the time per image: a batch that waited counts once."""
    return statistics.median(record.ms / record.n_images for record in records)


def _group(
    name: str,
    found: Mapping[str, list[Outcome]],
    asked: Mapping[str, set[int]],
    keys: Mapping[int, str],
) -> Group:
    facts = {label: merge_facts([protocol_facts(o) for o in own]) for label, own in found.items()}
    sources = [facts[label] for label, own in found.items() if is_source(own[0].entry.spec)]
    every = list(facts.values())
    # The protocol of most rows first, among equals that of the source row.
    protocols = [max(every, key=lambda own: (every.count(own), own in sources))]
    for own in every:
        protocols += [own] if own not in protocols else []
    places = {label: protocols.index(own) for label, own in facts.items()}
    seeds: dict[int, set[int]] = {}  # of all rows of a protocol
    for label, row in found.items():
        seeds.setdefault(places[label], set()).update(o.entry.spec.seed for o in row)
    rows = []
    for label, row in found.items():
        expected = asked.get(keys[id(row[0].entry)]) or seeds[places[label]]
        rows.append(_row(label, row, places[label], expected))
    rows = _relate(rows)
    columns = dict.fromkeys(column for row in rows for column in row.errors)
    return Group(name, tuple(columns), tuple(rows), tuple(protocols))


def _row(label: str, outcomes: Sequence[Outcome], protocol: int, expected: set[int]) -> Row:
    is_still = ignores_seed(outcomes)
    counted = outcomes[:1] if is_still else outcomes  # the same numbers again have no spread
    errors = {column: Measure.of(own) for column, own in _gather_errors(counted, 0).items()}
    mean = Measure.of([outcome.error for outcome in counted])
    missing = set() if is_still else expected - {own.entry.spec.seed for own in outcomes}
    return Row(label, tuple(outcomes), errors, mean, tuple(sorted(missing)), protocol)


def _gather_errors(outcomes: Sequence[Outcome], place: int) -> dict[Any, list[float]]:
    """Return by corruption (0) or by severity (1) the mean error in percent of each outcome."""
    found: dict[Any, list[float]] = {}
    for outcome in outcomes:
        own: dict[Any, list[float]] = {}
        for name, error in domain_errors(outcome).items():
            own.setdefault(split_domain(name, outcome.entry.spec)[place], []).append(error)
        for name, errors in own.items():
            found.setdefault(name, []).append(statistics.fmean(errors))
    return found


def _relate(rows: Sequence[Row]) -> list[Row]:
    """Return the source row and the others, with gains and the numbers of settings."""
    bases = {row.protocol: row for row in reversed(rows) if row.is_reference}
    settings: dict[tuple[int, str], set[str]] = {}
    for row in rows:
        terms = {name: dict(given) for name, given in row.spec.terms.items()}
        values = json.dumps([row.spec.get_config().to_dict(), terms], sort_keys=True, default=str)
        settings.setdefault((row.protocol, row.kind), set()).add(values)
    related = [
        replace(
            row,
            gain=_find_gain(row, bases.get(row.protocol)),
            n_settings=len(settings[row.protocol, row.kind]),
        )
        for row in rows
    ]
    return sorted(related, key=lambda row: not row.is_reference)


def _find_gain(row: Row, base: Row | None) -> float | None:
    if base is None or row.is_reference:
        return None
    own, other = ({o.entry.spec.seed: o.error for o in r.outcomes} for r in (row, base))
    if base.ignores_seed:
        other = dict.fromkeys(own, base.mean.mean)
    elif row.ignores_seed:
        own = dict.fromkeys(other, row.mean.mean)
    apart = [own[seed] - other[seed] for seed in own if seed in other]
    return statistics.fmean(apart) if apart else None


def _ascending(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: row.mean.mean))
