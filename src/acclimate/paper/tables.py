"""Tables of published and own numbers side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acclimate.paper.cells import AVERAGE, MEAN, Cell, Grid, Kind, Measured
from acclimate.paper.published import NOT_IN_TEXT, Published, is_accuracy
from acclimate.report.stats import Measure

#: What stands where a row of ours has no counterpart.
NOT_IN_PAPER = "not in the paper"


@dataclass(frozen=True)
class PaperRow:
    """A row of one setup: the paper's numbers and ours.

    Attributes:
        setup: Where ours were measured.
        label: Of the row.
        published: By column; None where the text has none.
        ours: By column; None where nothing came out.
        mark: What a reader must know of the row, such as "oracle".
        absent: What to print if no number of the row is published.
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

    Attributes:
        id: Of the experiment.
        title: What it shows.
        place: Where it stands in the paper.
        unit: Of the numbers.
        columns: Of every row.
        rows: Setup by setup.
        notes: What a reader must know.
        measured: What the numbers are.
        rising: Columns of errors that are none: the higher, the better.
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
        rows = [row for row in self.setups[setup] if "oracle" not in row.mark]
        found = {
            (row.label, index): round(value.mean, 2)
            for row in rows
            for index, value in enumerate(row.ours)
            if value is not None
        }
        rises = self.measured != "error" or is_accuracy(self.unit)
        across = len({label for label, _ in found}) == 1
        best = {}
        for (label, index), value in found.items():
            rivals = [own for (_, other), own in found.items() if across or other == index]
            choose = max if rises or self.columns[index] in self.rising else min
            best[label, index] = len(rivals) > 1 and value == choose(rivals)
        return best

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {
            "id": self.id,
            "title": self.title,
            "place": self.place,
            "unit": self.unit,
            "columns": list(self.columns),
            "rows": [
                {
                    "setup": row.setup,
                    "label": row.label,
                    "mark": row.mark,
                    "published": list(row.published) if row.is_published else row.absent,
                    "ours": [None if own is None else vars(own) for own in row.ours],
                    "difference": list(row.differences),
                }
                for row in self.rows
            ],
            "notes": list(self.notes),
        }


def published_cells(published: Published, setting: str) -> dict[Cell, float]:
    """Return the numbers that the text has of a setting, by cell, as errors."""
    return {
        (row, column): 100 - value if published.is_accuracy else value
        for row, values in published.rows.get(setting, {}).items()
        for column, value in zip(published.columns, values, strict=True)
        if value is not None
    }


def make_table(
    published: Published,
    grids: Sequence[Grid],
    kind: Kind,
    marks: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    measured: Measured = "error",
) -> PaperTable:
    """Return the table of a run.

    Args:
        published: The paper's numbers.
        grids: Ours, one of each setup; none shows the published ones alone.
        kind: What the columns are.
        marks: What a reader must know of a row, by its label.
        notes: To stand below, before those of the paper's numbers.
        measured: What the numbers are.
    """
    columns = _columns(published, grids, kind)
    rows = [row for grid in grids for row in _rows(published, grid, columns, kind, marks or {})]
    if not grids:
        rows = [
            PaperRow(setting, label, values, (None,) * len(values))
            for setting, own in published.rows.items()
            for label, values in own.items()
        ]
    return PaperTable(
        published.id,
        published.title,
        published.place,
        published.unit,
        columns,
        tuple(rows),
        (*notes, *published.notes),
        measured,
    )


def _columns(published: Published, grids: Sequence[Grid], kind: Kind) -> tuple[str, ...]:
    if not grids:
        return published.columns
    if kind == "corruptions":
        came = dict.fromkeys(domain for grid in grids for domain in grid.domains)
        known = [name for name in published.columns if name in came]
        return (MEAN, *known, *(name for name in came if name not in known))
    if kind == "domains":
        return _domain_columns(published, grids)
    came = dict.fromkeys(column for grid in grids for _, column in grid.cells)
    known = [name for name in published.columns if name in came]
    others = [name for name in came if name not in known and name != MEAN]
    return (*known, *others)


def _domain_columns(published: Published, grids: Sequence[Grid]) -> tuple[str, ...]:
    """Return the sets that came, and their average if all did; of one alone, its domains, too."""
    came = dict.fromkeys(column for grid in grids for _, column in grid.cells)
    sets = [name for name in published.columns if name in came and name != AVERAGE]
    if len(sets) == len(published.columns) - 1:
        return published.columns
    single = [name for name in came if name.startswith(f"{sets[0]}, ")] if len(sets) == 1 else []
    return (*sets, *single)


def _rows(
    published: Published,
    grid: Grid,
    columns: Sequence[str],
    kind: Kind,
    marks: Mapping[str, str],
) -> list[PaperRow]:
    known = published.rows.get(grid.paper, {})
    absent = NOT_IN_PAPER if published.has_numbers else NOT_IN_TEXT
    labels = [*known, *(row for row in grid.rows if row not in known)]
    return [
        PaperRow(
            setup=grid.name,
            label=label,
            published=tuple(_published(published, grid, label, column, kind) for column in columns),
            ours=tuple(
                grid.measure_domain(label, column)
                if kind == "corruptions" and column != MEAN
                else _as_published(grid.measure(label, column), published)
                for column in columns
            ),
            mark=marks.get(label, ""),
            absent=absent,
        )
        for label in labels
    ]


def _as_published(own: Measure | None, published: Published) -> Measure | None:
    """Return an error as the paper would print it: tables of accuracy have standard errors."""
    if own is None or not published.is_accuracy:
        return own
    spread = None if own.deviation is None else own.deviation / math.sqrt(own.n_seeds)
    return Measure(100 - own.mean, spread, own.n_seeds)


def _published(
    published: Published, grid: Grid, label: str, column: str, kind: Kind
) -> float | None:
    """Return a number of the paper; the mean over the corruptions that ours is a mean over."""
    value = published.get(grid.paper, label, column)
    if kind != "corruptions" or column != MEAN or value is None:
        return value
    every = [name for name in published.columns if name != MEAN]
    if not grid.domains or set(grid.domains) == set(every):
        return value
    chosen = [published.get(grid.paper, label, name) for name in grid.domains]
    numbers = [number for number in chosen if number is not None]
    return statistics.fmean(numbers) if len(numbers) == len(chosen) else None
