"""What the paper published, as data: every number of its text, each with its place."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

#: Values of the columns by setting and row; None for what stands only in a picture.
Rows = Mapping[str, Mapping[str, tuple[float | None, ...]]]

# What the file contains besides tables and figures.
_ABOUT = ("paper", "settings", "text")


@cache
def read_toml(name: str) -> dict[str, Any]:
    """Return what a file of this package declares."""
    return tomllib.loads((files("acclimate.paper") / name).read_text(encoding="utf-8"))


def is_accuracy(unit: str) -> bool:
    """Return whether numbers of this unit are the better the higher they are."""
    return unit.startswith("accuracy")


@dataclass(frozen=True)
class Published:
    """One table or figure of the paper, as `published.toml` describes it."""

    id: str
    title: str
    place: str
    unit: str
    columns: tuple[str, ...]
    rows: Rows
    notes: tuple[str, ...] = ()

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
            (row, column): 100 - value if is_accuracy(self.unit) else value
            for row, values in self.rows.get(setting, {}).items()
            for column, value in zip(self.columns, values, strict=True)
            if value is not None
        }


@cache
def load_published() -> dict[str, Published]:
    """Return the tables and figures of the paper by id."""
    content = read_toml("published.toml")
    return {name: _table(name, own) for name, own in content.items() if name not in _ABOUT}


def _table(name: str, content: Mapping[str, Any]) -> Published:
    rows = {
        setting: {row: tuple(map(_number, values)) for row, values in own.items()}
        for setting, own in content["rows"].items()
    }
    texts = {key: content[key] for key in ("title", "place", "unit")}
    columns, notes = tuple(content["columns"]), tuple(content.get("notes", ()))
    return Published(id=name, columns=columns, rows=rows, notes=notes, **texts)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
