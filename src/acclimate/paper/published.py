"""What the paper published, as data: every number of its text, each with its place."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

from acclimate.errors import CorruptFile

#: What stands where the paper has a number only in a picture.
NOT_IN_TEXT = "not in the text"

Values = tuple[float | None, ...]
Rows = Mapping[str, Mapping[str, Values]]

_ABOUT = ("paper", "settings", "text")
_KEYS = {"title", "place", "tex", "unit", "columns", "rows", "spread", "gains", "notes"}
_NEEDED = ("title", "place", "tex", "unit", "columns", "rows")


def is_accuracy(unit: str) -> bool:
    """Return whether numbers of this unit are the better the higher they are."""
    return unit.startswith("accuracy")


@dataclass(frozen=True)
class Published:
    """One table or figure of the paper.

    Attributes:
        id: As `acclimate reproduce` names it.
        title: What it shows.
        place: Where it stands.
        tex: Its label in the LaTeX source.
        unit: Of its numbers.
        columns: Of every row.
        rows: Values by setting and row; None for what stands only in a picture.
        spread: What is printed behind ±, of the same shape, where it is; a note explains it.
        gains: By setting: by how much the last row is lower than the one before, as printed.
        notes: What a reader must know.
    """

    id: str
    title: str
    place: str
    tex: str
    unit: str
    columns: tuple[str, ...]
    rows: Rows
    spread: Rows = field(default_factory=dict)
    gains: Mapping[str, Values] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def is_accuracy(self) -> bool:
        """Whether its numbers are accuracies; errors otherwise."""
        return is_accuracy(self.unit)

    def get(self, setting: str, row: str, column: str) -> float | None:
        """Return a number, or None if the text has none there."""
        values = self.rows.get(setting, {}).get(row)
        if values is None or column not in self.columns:
            return None
        return values[self.columns.index(column)]

    @property
    def has_numbers(self) -> bool:
        """Whether the text has any of its numbers."""
        every = (values for own in self.rows.values() for values in own.values())
        return any(value is not None for values in every for value in values)


@dataclass(frozen=True)
class Statement:
    """A number that stands in the running text.

    Attributes:
        place: Where.
        says: What it is.
        value: In points of error.
        table: Id of the table whose cells it is the difference of; empty if it is of none.
        setting: Of the two cells.
        rows: Of the two cells: the second is better than the first by the value.
    """

    place: str
    says: str
    value: float
    table: str = ""
    setting: str = ""
    rows: tuple[str, str] = ("", "")


@lru_cache(maxsize=1)
def load_published() -> dict[str, Published]:
    """Return the tables and figures of the paper by id.

    Raises:
        CorruptFile: The file in the package is not what it should be.
    """
    tables = {key: value for key, value in _read().items() if key not in _ABOUT}
    return {name: _table(name, content) for name, content in tables.items()}


@lru_cache(maxsize=1)
def load_statements() -> tuple[Statement, ...]:
    """Return the numbers of the running text."""
    return tuple(_statement(entry) for entry in _read()["text"])


def load_settings() -> dict[str, float]:
    """Return the hyper-parameters that the paper states, under the names they have here."""
    return dict(_read()["settings"])


def _read() -> dict[str, Any]:
    text = (files("acclimate.paper") / "published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _table(name: str, content: Mapping[str, Any]) -> Published:
    missing = [key for key in _NEEDED if key not in content]
    unknown = [key for key in content if key not in _KEYS]
    if missing or unknown:
        raise _damaged(name, f"missing: {missing}, unknown: {unknown}")
    columns = tuple(content["columns"])
    if len(set(columns)) < len(columns):
        raise _damaged(name, "a column occurs twice")
    return Published(
        id=name,
        title=content["title"],
        place=content["place"],
        tex=content["tex"],
        unit=content["unit"],
        columns=columns,
        rows=_rows(name, content["rows"], len(columns)),
        spread=_rows(name, content.get("spread", {}), len(columns)),
        gains={
            setting: _values(f"{name}, gains of {setting}", values, len(columns), lowest=-100)
            for setting, values in content.get("gains", {}).items()
        },
        notes=tuple(content.get("notes", ())),
    )


def _rows(name: str, rows: Mapping[str, Mapping[str, Any]], n_columns: int) -> Rows:
    return {
        setting: {
            row: _values(f"{name}, {setting}, {row}", values, n_columns)
            for row, values in own.items()
        }
        for setting, own in rows.items()
    }


def _values(place: str, values: Sequence[float], n_columns: int, lowest: float = 0) -> Values:
    if len(values) != n_columns:
        raise _damaged(place, f"expected {n_columns} numbers, found {len(values)}")
    numbers = tuple(None if math.isnan(value) else float(value) for value in values)
    if any(number is not None and not lowest <= number <= 100 for number in numbers):
        raise _damaged(place, f"expected numbers from {lowest:g} to 100, found {values}")
    return numbers


def _statement(entry: Mapping[str, Any]) -> Statement:
    made = Statement(entry["place"], entry["says"], entry["value"])
    if "from" not in entry:
        return made
    table, setting, first, second = entry["from"]
    return Statement(made.place, made.says, made.value, table, setting, (first, second))


def _damaged(place: str, what: str) -> CorruptFile:
    return CorruptFile(
        "wrong_content",
        f"published.toml, {place}: {what}. The file is part of acclimate. Install acclimate again.",
        path="published.toml",
    )
