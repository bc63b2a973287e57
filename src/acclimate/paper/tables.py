"""Tables of published and own numbers side by side, with the verdicts: as tables and as files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acclimate.corruptions import BENCHMARK
from acclimate.paper.claims import (
    AVERAGE,
    ENOUGH,
    MEAN,
    RESAMPLES,
    Grid,
    Kind,
    Measured,
    Verdict,
)
from acclimate.paper.published import Published, is_accuracy
from acclimate.report.stats import Measure
from acclimate.report.table import ABSENT, Cell, Column, Document, Table, format_number, plain

#: What stands where a row of ours has no counterpart, and where the paper has only a picture.
NOT_IN_PAPER, NOT_IN_TEXT = "not in the paper", "not in the text"

_SIGNS = {
    "holds": ("✓", "green"),
    "does not hold": ("✗", "bold red"),
    "cannot be told": ("?", "yellow"),
}
_HOW = (
    f"Verdicts: a paired bootstrap over seeds and corruptions or domains, {RESAMPLES} resamples "
    f"with a fixed seed; something holds, or does not, from a confidence of {ENOUGH:.0%} on. n "
    "pairs cannot show more than 1 − 2⁻ⁿ."
)


@dataclass(frozen=True)
class PaperRow:
    """A row of one setup: the paper's numbers and ours, by column; None where there is none.

    `mark` is what a reader must know of it, `absent` what is shown if no number of it is published.
    """

    setup: str
    label: str
    published: tuple[float | None, ...]
    ours: tuple[Measure | None, ...]
    mark: str = ""
    absent: str = NOT_IN_PAPER

    @property
    def is_published(self) -> bool:
        """Whether the text has any number of the row."""
        return any(value is not None for value in self.published)

    @property
    def is_measured(self) -> bool:
        """Whether we have any number of the row."""
        return any(value is not None for value in self.ours)

    @property
    def differences(self) -> tuple[float | None, ...]:
        """Ours minus published, in points."""
        return tuple(
            None if theirs is None or own is None else own.mean - theirs
            for theirs, own in zip(self.published, self.ours, strict=True)
        )


@dataclass(frozen=True)
class PaperTable:
    """Published, ours and the difference of a whole table or figure.

    `measured` is what the numbers are; `rising` are columns where more is better all the same.
    """

    id: str
    title: str
    place: str
    unit: str
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...] = ()
    measured: Measured = "error"
    rising: tuple[str, ...] = ()

    @property
    def setups(self) -> dict[str, tuple[PaperRow, ...]]:
        """The rows by setup."""
        names = dict.fromkeys(row.setup for row in self.rows)
        return {name: tuple(row for row in self.rows if row.setup == name) for name in names}

    def find_best(self, setup: str) -> dict[tuple[str, int], bool]:
        """Return the cells of ours that are the best of their column, by label and column.

        Errors are best where they are lowest, accuracies and mean IoU where they are highest. In a
        table with one row the best of the row are meant, as the paper marks them. Oracles do not
        compete.
        """
        found = {
            (row.label, index): round(value.mean, 2)
            for row in self.setups[setup]
            for index, value in enumerate(row.ours)
            if value is not None and "oracle" not in row.mark
        }
        rises = self.measured != "error" or is_accuracy(self.unit)
        across = len({label for label, _ in found}) == 1
        best = {}
        for (label, index), value in found.items():
            rivals = [own for (_, other), own in found.items() if across or other == index]
            choose = max if rises or self.columns[index] in self.rising else min
            best[label, index] = len(rivals) > 1 and value == choose(rivals)
        return best

    def to_table(self, setup: str) -> Table:
        """Return the rows of one setup, the best of ours marked.

        With one column, a line for each row; with several, a line for each of published, ours and
        difference.
        """
        ran = any(row.is_measured for row in self.rows)
        best = self.find_best(setup)
        is_flat = len(self.columns) == 1
        rows: list[tuple[Cell, ...]] = []
        for row in self.setups[setup]:
            missing = "" if row.is_published else row.absent
            if ran and not row.is_measured:
                missing = "not run"
            marks = ", ".join(mark for mark in (row.mark, missing) if mark)
            name = Cell(row.label, row.label, about=f"({marks})" if marks else "")
            ours = [
                _number(own, column, is_best=best.get((row.label, index), False))
                for index, (own, column) in enumerate(zip(row.ours, self.columns, strict=True))
            ]
            theirs = list(map(_number, row.published, self.columns))
            apart = [_number(*own, "+") for own in zip(row.differences, self.columns, strict=True)]
            if is_flat:
                absent = [Cell(row.absent)] if row.published[0] is None else theirs
                rows.append((name, *absent, *ours, *apart))
                continue
            for kind, cells, is_there in (
                ("published", theirs, row.is_published),
                ("ours", ours, row.is_measured),
                ("difference", apart, row.is_published and row.is_measured),
            ):
                if is_there:
                    rows.append((name, plain(kind), *cells))
                    name = Cell("")
        heads = ("published", "ours", "difference") if is_flat else self.columns
        columns = [Column("", "label")] * (1 if is_flat else 2) + [
            Column(head.replace("_", " "), "detail" if index and not is_flat else "value")
            for index, head in enumerate(heads)
        ]
        caption = f"{self.place}; {self.unit}."
        return Table(tuple(columns), tuple(rows), f"{self.title}: {setup}", caption)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        rows = [
            {
                "setup": row.setup,
                "label": row.label,
                "mark": row.mark,
                "published": list(row.published) if row.is_published else row.absent,
                "ours": [None if own is None else vars(own) for own in row.ours],
                "difference": list(row.differences),
            }
            for row in self.rows
        ]
        texts = {name: getattr(self, name) for name in ("id", "title", "place", "unit")}
        return {**texts, "columns": list(self.columns), "rows": rows, "notes": list(self.notes)}


def tabulate(
    published: Published,
    grids: Sequence[Grid],
    kind: Kind,
    marks: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    measured: Measured = "error",
) -> PaperTable:
    """Return the table of a run, `marks` by row.

    Without grids, which are ours, it has the published numbers alone. The notes stand before those
    of the paper's numbers.
    """
    columns = _list_columns(published, grids, kind) if grids else published.columns
    absent = NOT_IN_PAPER if published.has_numbers else NOT_IN_TEXT
    rows = []
    for grid in grids:
        known = published.rows.get(grid.paper, ())
        for label in (*known, *(row for row in grid.rows if row not in known)):
            theirs = tuple(_published(published, grid, label, name, kind) for name in columns)
            ours = tuple(_ours(published, grid, label, name, kind) for name in columns)
            mark = (marks or {}).get(label, "")
            rows.append(PaperRow(grid.name, label, theirs, ours, mark, absent))
    if not grids:
        rows = [
            PaperRow(setting, label, values, (None,) * len(values))
            for setting, own in published.rows.items()
            for label, values in own.items()
        ]
    texts = (published.id, published.title, published.place, published.unit)
    return PaperTable(*texts, columns, tuple(rows), (*notes, *published.notes), measured)


def _list_columns(published: Published, grids: Sequence[Grid], kind: Kind) -> tuple[str, ...]:
    if kind == "corruptions":
        came = dict.fromkeys(domain for grid in grids for domain in grid.domains)
    else:
        came = dict.fromkeys(column for grid in grids for _, column in grid.cells)
    known = [name for name in published.columns if name in came]
    if kind == "domains":
        # The sets that came, and their average if all did; of one alone, its domains, too.
        sets = [name for name in known if name != AVERAGE]
        if len(sets) == len(published.columns) - 1:
            return published.columns
        single = [name for name in came if len(sets) == 1 and name.startswith(f"{sets[0]}, ")]
        return (*sets, *single)
    others = [name for name in came if name not in known and name != MEAN]
    return (*([MEAN] if kind == "corruptions" else []), *known, *others)


def _ours(published: Published, grid: Grid, label: str, column: str, kind: Kind) -> Measure | None:
    """Return a number as the paper would print it: tables of accuracy have standard errors."""
    if kind == "corruptions":
        return grid.measure(label, MEAN, None if column == MEAN else column)
    own = grid.measure(label, column)
    if own is None or not is_accuracy(published.unit):
        return own
    spread = None if own.deviation is None else own.deviation / math.sqrt(own.n_seeds)
    return Measure(100 - own.mean, spread, own.n_seeds)


def _published(
    published: Published, grid: Grid, label: str, column: str, kind: Kind
) -> float | None:
    """Return a number of the paper; the mean over the corruptions that ours is a mean over."""
    value = published.get(grid.paper, label, column)
    every = [name for name in published.columns if name != MEAN]
    is_part = bool(grid.domains) and set(grid.domains) != set(every)
    if kind != "corruptions" or column != MEAN or value is None or not is_part:
        return value
    chosen = [published.get(grid.paper, label, name) for name in grid.domains]
    numbers = [number for number in chosen if number is not None]
    return statistics.fmean(numbers) if len(numbers) == len(chosen) else None


def _number(
    value: Measure | float | None, column: str, sign: str = "", is_best: bool = False
) -> Cell:
    """Return a cell; the paper has one decimal for a corruption, two for a mean."""
    if value is None:
        return Cell(ABSENT)
    digits, spread = (1, "") if column in BENCHMARK else (2, "")
    if isinstance(value, Measure):
        if value.deviation is not None and digits == 2:
            spread = f" ± {value.deviation:.2f}"
        value = value.mean
    return Cell(format_number(value, digits, sign) + spread, value, is_best)


def claims_table(verdicts: Sequence[Verdict]) -> Table:
    """Return what became of each claim."""
    heads = ("", "claim", "where", "in our run", "in the paper's numbers")
    agrees = {None: NOT_IN_TEXT, True: "yes", False: "no"}
    rows = []
    for own in verdicts:
        sign, style = _SIGNS[own.verdict]
        texts = (own.claim, own.setup, describe_verdict(own), agrees[own.published])
        rows.append((Cell(sign, style=style), *map(plain, texts)))
    columns = tuple(Column(head, "words") for head in heads)
    return Table(columns, tuple(rows), name="Claims", notes=(_HOW,))


def describe_verdict(verdict: Verdict) -> str:
    """Return what became of a claim, without the claim itself."""
    parts = []
    if verdict.margin is not None:
        parts.append(f"{format_number(verdict.margin, 2, '+')} points")
    if verdict.confidence:
        parts.append(f"confidence {min(verdict.confidence, 0.9999):.1%}")
    if verdict.n_seeds:
        seeds = f"{verdict.n_seeds} seed{'s' if verdict.n_seeds > 1 else ''}"
        parts.append(f"{seeds} × {verdict.n_domains} {verdict.units}")
    if verdict.reason:
        parts.append(verdict.reason)
    return f"{verdict.verdict} ({', '.join(parts)})" if parts else verdict.verdict


def make_document(
    table: PaperTable, verdicts: Sequence[Verdict] = (), facts: Sequence[str] = ()
) -> Document:
    """Return the table setup by setup, the verdicts and all notes."""
    parts = [(setup, (table.to_table(setup),)) for setup in table.setups]
    parts += [("Claims", (claims_table(verdicts),))] if verdicts else []
    notes = (*facts, *table.notes)
    return Document(f"{table.id}: {table.title}", tuple(parts), notes=notes)
