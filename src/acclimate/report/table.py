"""The table of a report: errors of every method on every shift, and the finding in one sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from acclimate.errors import BadInput
from acclimate.evaluation import Result
from acclimate.methods import METHODS
from acclimate.report.columns import Column, make_column, speed_column
from acclimate.report.content import Run, name_in_group

_MOST_NAMED = 5  # methods beside the best that a sentence can name

#: Stands for what was not measured.
ABSENT = "–"

#: The method that never adapts, with which all others are compared.
BASELINE = "source"


@dataclass(frozen=True)
class Measure:
    """An error in percent: mean and standard deviation over seeds; no deviation for one seed."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.1f}"
        return f"{self.mean:.1f}{spread}"


@dataclass(frozen=True)
class Row:
    """One method of the table.

    Attributes:
        method: Name of the method.
        errors: By domain.
        mean: Over domains.
        images_per_second: Over all batches of all seeds.
        ms_per_batch: Median over all batches of all seeds.
        group: What sets the row apart; it is compared with rows of the same group only.
        n_images: Images of one shift, for one seed.
        miou: Mean intersection over union, over domains; None if no pixels were predicted.
        estimated: The mean error as the guard estimated it without labels; None if there is no
            estimate.
        by_source: Share of images in percent that the source model answered; None without a guard.
    """

    method: str
    errors: dict[str, Measure]
    mean: Measure
    images_per_second: float
    ms_per_batch: float
    group: str = ""
    n_images: int = 0
    miou: Measure | None = None
    estimated: Measure | None = None
    by_source: float | None = None

    @property
    def name(self) -> str:
        """The method, with the group if there is one."""
        return name_in_group(self.method, self.group)

    @property
    def is_oracle(self) -> bool:
        """Whether the method learned from labels, so that it does not compete with the others."""
        return self.method in METHODS and METHODS[self.method].card.is_oracle

    @property
    def label(self) -> str:
        """The name, with a mark if the method learns from labels or is a reconstruction."""
        kind = METHODS.get(self.method)
        if kind is None:
            return self.name
        marks = (
            "oracle" if kind.card.is_oracle else "",
            "reconstruction" if kind.card.reconstruction else "",
        )
        return " ".join([self.name, *(f"({mark})" for mark in marks if mark)])


@dataclass(frozen=True)
class Table:
    """Errors and speed of all methods.

    Attributes:
        rows: One a method of each group.
        domains: Names of the shifts, in the order of the stream.
        n_seeds: Seeds that every number is a mean over.
        n_images: Images of one shift, for one seed; a group may have fewer.
    """

    rows: tuple[Row, ...]
    domains: tuple[str, ...]
    n_seeds: int
    n_images: int

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns after the method's name, with texts and the best of each."""
        errors = [(name, [row.errors[name] for row in self.rows]) for name in self.domains]
        errors.append(("mean", [row.mean for row in self.rows]))
        competing = _competing(self.main)
        competes = [row in competing for row in self.rows]
        return (
            *(
                make_column(name, [m.mean for m in measures], [str(m) for m in measures], competes)
                for name, measures in errors
            ),
            *_guard_columns(self.rows),
            *_overlap_column(self.rows, competes),
            speed_column("images/s", [row.images_per_second for row in self.rows], competes, max),
            speed_column("ms/batch", [row.ms_per_batch for row in self.rows], competes, min),
        )

    @property
    def groups(self) -> dict[str, tuple[Row, ...]]:
        """The rows that can be compared with each other, by what sets them apart."""
        names = dict.fromkeys(row.group for row in self.rows)
        return {name: tuple(row for row in self.rows if row.group == name) for name in names}

    @property
    def main(self) -> tuple[Row, ...]:
        """The rows of the first group in which there is something to compare."""
        groups = list(self.groups.values())
        return next((rows for rows in groups if len(rows) > 1), groups[0])

    @property
    def margin(self) -> float:
        """Half the width, in points, of the widest 95 % interval of one shift's error."""
        return margin(self.n_images)


def margin(n_images: int) -> float:
    """Return half the width, in points, of the widest 95 % interval of an error on so many."""
    return 1.96 * 50 / math.sqrt(n_images)


def summarize(runs: Sequence[Run]) -> Table:
    """Return the table of the runs: means and sample standard deviations over seeds, in percent.

    Raises:
        BadInput: Methods were not all measured with the same seeds and shifts.
    """
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)
    shapes = {
        (tuple(run.seed for run in own), *(tuple(run.result.error_by_domain) for run in own))
        for own in by_name.values()
    }
    if len(shapes) != 1:
        raise BadInput(
            "runs_differ",
            "Expected runs in which every method has the same seeds and the same shifts in the "
            f"same order, found {len(shapes)} different combinations. Remove the methods that did "
            "not finish.",
        )
    rows = tuple(_row(own) for own in by_name.values())
    domains = tuple(runs[0].result.error_by_domain)
    return Table(rows, domains, len(by_name[runs[0].name]), max(row.n_images for row in rows))


def find_best(table: Table) -> tuple[Row, ...]:
    """Return the rows with the lowest mean error, as far as one decimal tells them apart."""
    rows = _competing(table.main)
    lowest = min(round(row.mean.mean, 1) for row in rows)
    return tuple(row for row in rows if round(row.mean.mean, 1) == lowest)


def describe(table: Table) -> str:
    """Return what the table shows, in one sentence made of its numbers."""
    best = find_best(table)
    names = _join([row.name for row in best])
    lowest = _percent(best[0])
    base = _find_base(table.main)
    others = [row for row in _competing(table.main) if row not in best and row is not base]
    ranked = _ranked(others)
    shown = ranked if len(ranked) <= _MOST_NAMED else ranked[: _MOST_NAMED - 1]
    listed = [f"{row.name} {_percent(row)}" for row in shown]
    if len(shown) < len(ranked):
        listed.append(f"{len(ranked) - len(shown)} more, up to {_percent(ranked[-1])}")
    rest = _join(listed)
    if base is None or len(table.main) == 1:
        sentence = f"The mean error is lowest with {names}: {lowest}"
        return f"{sentence}, against {rest}." if rest else f"{sentence}."
    if base in best:
        sentence = f"No method lowers the mean error of the source model, {lowest}"
        same = _join([row.name for row in best if row is not base])
        sentence += f"; {same} equal{'s' if len(best) == 2 else ''} it" if same else ""
        return f"{sentence}; the others: {rest}." if rest else f"{sentence}."
    sentence = f"Adapting online lowers the mean error from {_percent(base)} to {lowest} ({names})"
    return f"{sentence}; the other methods: {rest}." if rest else f"{sentence}."


def describe_apart(table: Table) -> str:
    """Return what the other groups show, each row beside its own baseline; empty for one group."""
    parts = []
    for rows in table.groups.values():
        base = _find_base(rows)
        against = f" against {_percent(base)} without adapting" if base is not None else ""
        parts += [
            f"{row.name} {_percent(row)}{against}"
            for row in rows
            if rows != table.main and row is not base
        ]
    return f"Apart from these: {_join(parts)}." if parts else ""


def count_wins(runs: Sequence[Run]) -> str:
    """Return in how many seeds the best method was ahead of the next; empty for one seed."""
    table = summarize(runs)
    if table.n_seeds < 2:
        return ""
    ranked = _ranked(_competing(table.main))
    if len(ranked) < 2:
        return ""
    first, second = ranked[:2]
    errors = {(run.name, run.seed): run.result.error for run in runs}
    seeds = {run.seed for run in runs}
    wins = sum(errors[first.name, seed] < errors[second.name, seed] for seed in seeds)
    return f"{first.name} was ahead of {second.name} in {wins} of {table.n_seeds} seeds."


def _row(runs: Sequence[Run]) -> Row:
    results = [run.result for run in runs]
    domains = results[0].error_by_domain
    shares = [list(result.miou_by_domain.values()) for result in results]
    overlaps = [statistics.fmean(own) for own in shares if own]
    estimates = [r.estimated_error for r in results if r.estimated_error is not None]
    answered = [r.by_source for r in results if r.by_source is not None]
    pooled = Result(tuple(record for result in results for record in result.records))
    return Row(
        method=runs[0].method,
        errors={name: _measure([r.error_by_domain[name] for r in results]) for name in domains},
        mean=_measure([result.error for result in results]),
        images_per_second=pooled.images_per_second,
        ms_per_batch=pooled.ms_per_batch,
        group=runs[0].group,
        n_images=results[0].n_images // len(domains),
        miou=_measure(overlaps) if overlaps else None,
        estimated=_measure(estimates) if estimates else None,
        by_source=100 * statistics.fmean(answered) if answered else None,
    )


def _measure(shares: Sequence[float]) -> Measure:
    values = [100 * share for share in shares]
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Measure(statistics.fmean(values), deviation)


def _guard_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return the estimated error, and how much the source model answered; none without a guard."""
    if all(row.by_source is None for row in rows):
        return ()
    none = (False,) * len(rows)
    guesses = [math.nan if row.estimated is None else row.estimated.mean for row in rows]
    shares = [math.nan if row.by_source is None else row.by_source for row in rows]
    return (
        Column(
            "estimated", tuple(guesses), tuple(str(row.estimated or ABSENT) for row in rows), none
        ),
        Column(
            "by_source",
            tuple(shares),
            tuple(ABSENT if math.isnan(share) else f"{share:.0f}" for share in shares),
            none,
        ),
    )


def _overlap_column(rows: Sequence[Row], competes: Sequence[bool]) -> tuple[Column, ...]:
    """Return the column of overlaps, of which more is better; none if there are none."""
    found = [row.miou for row in rows if row.miou is not None]
    if len(found) < len(rows):
        return ()
    values, texts = [own.mean for own in found], [str(own) for own in found]
    return (make_column("mIoU", values, texts, competes, choose=max),)


def _find_base(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row.method == BASELINE), None)


def _competing(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows without oracles, unless there are no others."""
    return [row for row in rows if not row.is_oracle] or rows


def _ranked(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.mean.mean)


def _percent(row: Row) -> str:
    return f"{row.mean.mean:.1f} %"


def _join(words: Sequence[str]) -> str:
    return " and ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), *words[-1:]])
