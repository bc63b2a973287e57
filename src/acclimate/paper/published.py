"""What the paper published, as data: every number of its text, each with its place."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from acclimate.errors import CorruptFile

Values = tuple[float | None, ...]
Rows = Mapping[str, Mapping[str, Values]]

_ABOUT = ("paper", "settings", "text")
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

    @property
    def has_numbers(self) -> bool:
        """Whether the text has any of its numbers."""
        every = (values for own in self.rows.values() for values in own.values())
        return any(value is not None for values in every for value in values)

    def get(self, setting: str, row: str, column: str) -> float | None:
        """Return a number, or None if the text has none there."""
        values = self.rows.get(setting, {}).get(row)
        if values is None or column not in self.columns:
            return None
        return values[self.columns.index(column)]

    def errors(self, setting: str) -> dict[tuple[str, str], float]:
        """Return the numbers that the text has of a setting, by row and column, as errors."""
        return {
            (row, column): 100 - value if self.is_accuracy else value
            for row, values in self.rows.get(setting, {}).items()
            for column, value in zip(self.columns, values, strict=True)
            if value is not None
        }


@dataclass(frozen=True)
class Statement:
    """A number that stands in the running text, in points of error.

    If it is the difference of two cells of a table, `rows` are theirs: the second is better than
    the first by the value.
    """

    place: str
    says: str
    value: float
    table: str = ""
    setting: str = ""
    rows: tuple[str, str] = ("", "")


@cache
def load_published() -> dict[str, Published]:
    """Return the tables and figures of the paper by id.

    Raises:
        CorruptFile: The file in the package is not what it should be.
    """
    return {name: _table(name, own) for name, own in _read().items() if name not in _ABOUT}


@cache
def load_statements() -> tuple[Statement, ...]:
    """Return the numbers of the running text."""
    made = []
    for entry in _read()["text"]:
        table, setting, *rows = entry.get("from", ("", "", "", ""))
        texts = (entry["place"], entry["says"], entry["value"])
        made.append(Statement(*texts, table, setting, (rows[0], rows[1])))
    return tuple(made)


def load_settings() -> dict[str, float]:
    """Return the hyper-parameters that the paper states, under the names they have here."""
    return dict(_read()["settings"])


def _read() -> dict[str, Any]:
    text = (files("acclimate.paper") / "published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _table(name: str, content: Mapping[str, Any]) -> Published:
    missing = [key for key in _NEEDED if key not in content]
    unknown = [key for key in content if key not in (*_NEEDED, "spread", "gains", "notes")]
    if missing or unknown:
        raise _damaged(name, f"missing: {missing}, unknown: {unknown}")
    columns = tuple(content["columns"])
    if len(set(columns)) < len(columns):
        raise _damaged(name, "a column occurs twice")

    def read(rows: Mapping[str, Sequence[float]], about: str, lowest: float = 0) -> Any:
        return {
            row: _values(f"{name}, {about}, {row}", values, len(columns), lowest)
            for row, values in rows.items()
        }

    several: dict[str, Any] = {
        key: {setting: read(own, setting) for setting, own in content.get(key, {}).items()}
        for key in ("rows", "spread")
    }
    texts = {key: content[key] for key in ("title", "place", "tex", "unit")}
    gains, notes = read(content.get("gains", {}), "gains", -100), tuple(content.get("notes", ()))
    return Published(id=name, columns=columns, gains=gains, notes=notes, **texts, **several)


def _values(place: str, values: Sequence[float], n_columns: int, lowest: float) -> Values:
    if len(values) != n_columns:
        raise _damaged(place, f"expected {n_columns} numbers, found {len(values)}")
    numbers = tuple(None if math.isnan(value) else float(value) for value in values)
    if any(number is not None and not lowest <= number <= 100 for number in numbers):
        raise _damaged(place, f"expected numbers from {lowest:g} to 100, found {values}")
    return numbers


def _damaged(place: str, what: str) -> CorruptFile:
    return CorruptFile(
        "wrong_content",
        f"published.toml, {place}: {what}. The file is part of acclimate. Install acclimate again.",
        path="published.toml",
    )
