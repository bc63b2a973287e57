"""The report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from acclimate.bench.reports.bootstrap import Ranking, rank
from acclimate.bench.reports.cells import (
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
from acclimate.bench.reports.tabulate import Group, Summary

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def render_markdown(summary: Summary) -> str:
    """Return all tables of a report with their protocols, notes and rankings."""
    rankings = [rank(group) for group in summary.groups]
    parts = [f"# {escape(summary.title)}"] if summary.title else []
    parts += [escape(text) for text in findings(summary, rankings)]
    parts.append(escape(selection_line(summary)))
    parts += [escape(text) for text in summary_notes(summary)]
    for group, own in zip(summary.groups, rankings, strict=True):
        if group.name:
            parts.append(f"## {escape(group.name)}")
        parts += [table_markdown(group), *(_ranking(ranking) for ranking in own)]
    return "\n\n".join(parts) + "\n"


def table_markdown(group: Group) -> str:
    """Return one table, with its protocol and its notes."""
    rows = [[_name(row.name, row.mark), *map(_show, list_cells(group, row))] for row in group.rows]
    table = _table(["method", *map(escape, list_heads(group))], rows)
    texts = [protocol_line(group), caption(group), *group_notes(group)]
    return "\n\n".join([table, *map(escape, texts)])


def escape(text: str) -> str:
    r"""Return a text in which nothing has a meaning in Markdown.

    >>> escape("a_b | *c*")
    'a\\_b \\| \\*c\\*'
    """
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _ranking(ranking: Ranking) -> str:
    rows = [[_name(row.name, row.mark), *map(_show, cells)] for row, cells in list_places(ranking)]
    table = _table(["method", *RANKING_HEADS], rows)
    return f"{table}\n\n{escape(ranking_note(ranking))}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    sides = [":--", *["--:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, sides, *rows))


def _name(name: str, mark: str) -> str:
    return f"{escape(name)}<sup>{escape(mark)}</sup>" if mark else escape(name)


def _show(cell: Cell) -> str:
    number, sign, spread = cell.text.partition(" ± ")
    shown = f"**{escape(number)}**" if cell.is_best else escape(number)
    return f"{shown}{sign}{spread}"
