"""The report on the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from acclimate.bench.reports.bootstrap import Ranking, rank
from acclimate.bench.reports.cells import (
    MEAN_HEAD,
    RANKING_HEADS,
    Cell,
    list_cells,
    list_heads,
    list_places,
)
from acclimate.bench.reports.notes import (
    caption,
    findings,
    group_notes,
    protocol_line,
    ranking_note,
    selection_line,
    summary_notes,
)
from acclimate.bench.reports.tabulate import Group, Row, Summary

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: Width of a report that is written to a file, or through a pipe.
FILE_WIDTH = 120

# Letters of a heading that stand on one line.
_HEAD_WIDTH = 9


def show_report(console: Console, summary: Summary) -> None:
    """Print all tables of a report; where a table is too wide, its domains follow in parts."""
    rankings = [rank(group) for group in summary.groups]
    if summary.title:
        console.print(summary.title, style="bold")
    for group, own in zip(summary.groups, rankings, strict=True):
        if group.name:
            console.print()
            console.print(group.name, style="bold")
        _show_group(console, group)
        for ranking in own:
            _show_ranking(console, ranking)
    console.print(selection_line(summary), style="dim")
    for text in summary_notes(summary):
        console.print(text, style="dim")
    console.print()
    for text in findings(summary, rankings):
        console.print(text, style="bold")


def _show_group(console: Console, group: Group) -> None:
    heads = list_heads(group)
    cells = [list_cells(group, row) for row in group.rows]
    names = [_name(row) for row in group.rows]
    for part in _split(console, heads, names, cells):
        chosen = [[own[index] for index in part] for own in cells]
        console.print(_table(console, [heads[index] for index in part], names, chosen))
    mark = "Bold" if console.is_terminal else "Marked *"
    for text in (protocol_line(group), caption(group, mark), *group_notes(group)):
        console.print(text, style="dim")
    console.print()


def _show_ranking(console: Console, ranking: Ranking) -> None:
    places = list_places(ranking)
    names = [_name(row) for row, _ in places]
    console.print(_table(console, RANKING_HEADS, names, [cells for _, cells in places]))
    console.print(ranking_note(ranking), style="dim")
    console.print()


def _split(
    console: Console, heads: Sequence[str], names: Sequence[str], rows: Sequence[Sequence[Cell]]
) -> list[list[int]]:
    """Return which columns go into each table: all, or the summary and then domains by width."""
    from rich.measure import Measurement

    options = console.options.update(max_width=10_000)

    def fits(part: Sequence[int]) -> bool:
        chosen = [[cells[index] for index in part] for cells in rows]
        table = _table(console, [heads[index] for index in part], names, chosen)
        return Measurement.get(console, options, table).maximum <= console.width

    everything = list(range(len(heads)))
    if fits(everything):
        return [everything]
    n_domains = heads.index(MEAN_HEAD)
    parts: list[list[int]] = [everything[n_domains:], []]
    for index in everything[:n_domains]:
        if parts[-1] and not fits([*parts[-1], index]):
            parts.append([])
        parts[-1].append(index)
    return [part for part in parts if part]


def _table(
    console: Console,
    heads: Sequence[str],
    names: Sequence[str],
    rows: Sequence[Sequence[Cell]],
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # Bold cannot be seen in a file: a star stands there instead.
    mark, blank = ("", "") if console.is_terminal else ("*", " ")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("method", overflow="fold")
    for head in heads:
        table.add_column(_fold(head), justify="right", no_wrap=True)
    for name, cells in zip(names, rows, strict=True):
        texts = [
            Text(cell.text + mark, style="bold") if cell.is_best else Text(cell.text + blank)
            for cell in cells
        ]
        table.add_row(Text(name), *texts)
    return table


def _fold(head: str) -> str:
    """Return a heading over several lines, as numbers are narrow."""
    if ", " not in head:
        return head.replace("_", "\n")
    whole = head.replace(" %", "\u00a0%")  # a number and its sign stay on one line
    return "\n".join(textwrap.wrap(whole, _HEAD_WIDTH, break_long_words=False))


def _name(row: Row) -> str:
    return f"{row.name} {row.mark}" if row.mark else row.name
