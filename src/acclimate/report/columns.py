"""Columns of a table: what to show, what to compare by, and the best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """One column of the table: a heading, a number to compare and a text for each row.

    Attributes:
        name: The heading.
        values: To compare and sort by, in the order of the rows.
        texts: To show.
        best: Which rows show the best value of the column.
    """

    name: str
    values: tuple[float, ...]
    texts: tuple[str, ...]
    best: tuple[bool, ...]


def make_column(
    name: str,
    values: Sequence[float],
    texts: Sequence[str],
    competes: Sequence[bool],
    digits: int = 1,
    choose: Callable[[Iterable[float]], float] = min,
) -> Column:
    """Return a column, whose best is chosen among the rows that compete."""
    # Compared as shown: two rows that read the same are equally good.
    shown = [round(value, digits) for value in values]
    target = choose(value for value, counts in zip(shown, competes, strict=True) if counts)
    best = (counts and value == target for value, counts in zip(shown, competes, strict=True))
    return Column(name, tuple(values), tuple(texts), tuple(best))


def speed_column(
    name: str,
    values: Sequence[float],
    competes: Sequence[bool],
    choose: Callable[[Iterable[float]], float],
) -> Column:
    """Return a column of whole numbers."""
    return make_column(name, values, [f"{value:.0f}" for value in values], competes, 0, choose)
