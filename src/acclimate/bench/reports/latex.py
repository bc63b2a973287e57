r"""The report as LaTeX tables, for a document that loads `booktabs` and `graphicx`."""

from __future__ import annotations

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
    group_notes,
    protocol_line,
    ranking_note,
    selection_line,
    summary_notes,
)
from acclimate.bench.reports.tabulate import Group, Summary

# More headings than this stand upright, or else the table is wider than a page.
_MOST_LYING = 9

_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    # After the end of a line these two would be read as its options.
    "[": "{[}",
    "*": "{*}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "–": "--",
    "…": r"\dots{}",
    "⁻": r"$^{-}$",
    "ⁿ": r"$^{n}$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "→": r"$\rightarrow$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "α": r"$\alpha$",
    "θ": r"$\theta$",
    "λ": r"$\lambda$",
}
_HEADER = r"% needs \usepackage{booktabs} and \usepackage{graphicx} in the preamble"


def render_latex(summary: Summary) -> str:
    """Return the tables of all groups, each with its ranking, its protocol and its notes."""
    parts = [_HEADER]
    for group in summary.groups:
        parts.append(_error_table(summary, group))
        parts += [_ranking_table(summary, group, ranking) for ranking in rank(group)]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    r"""Return a text in which nothing has a meaning in LaTeX.

    >>> escape("a_b & 5 %")
    'a\\_b \\& 5 \\%'
    """
    return "".join(_ESCAPES.get(sign, sign) for sign in " ".join(text.split()))


def _error_table(summary: Summary, group: Group) -> str:
    heads = list_heads(group)
    rows = [[_name(row.name, row.mark), *map(_show, list_cells(group, row))] for row in group.rows]
    n_before = sum(row.is_reference for row in group.rows)
    rules = {n_before} if 0 < n_before < len(rows) else set()
    notes = [
        protocol_line(group),
        selection_line(summary),
        *group_notes(group),
        *summary_notes(summary),
    ]
    title = " ".join(text for text in (_title(summary, group), caption(group)) if text)
    return _table(title, ["method", *heads], rows, rules, notes)


def _ranking_table(summary: Summary, group: Group, ranking: Ranking) -> str:
    rows = [[_name(row.name, row.mark), *map(_show, cells)] for row, cells in list_places(ranking)]
    title = " ".join(text for text in (_title(summary, group), "Ranking by mean error.") if text)
    notes = [ranking_note(ranking), protocol_line(group), selection_line(summary)]
    return _table(title, ["method", *RANKING_HEADS], rows, set(), notes)


def _title(summary: Summary, group: Group) -> str:
    words = ", ".join(text for text in (summary.title, group.name) if text)
    return f"{words}." if words else ""


def _table(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    rules: set[int],
    notes: Sequence[str],
) -> str:
    upright = len(heads) > _MOST_LYING
    named = [escape(head.replace("_", " ")) for head in heads]
    shown = [named[0], *(rf"\rotatebox{{90}}{{{n}}}" if upright else n for n in named[1:])]
    body = []
    for index, cells in enumerate(rows):
        if index in rules:
            body.append(r"\midrule")
        body.append(" & ".join(cells) + r" \\")
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(title)}}}",
        r"\setlength{\tabcolsep}{3pt}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        r"\toprule",
        " & ".join(shown) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        *(rf"\par\smallskip\parbox{{\linewidth}}{{\footnotesize {escape(n)}}}" for n in notes),
        r"\end{table}",
    ]
    return "\n".join(lines)


def _name(name: str, mark: str) -> str:
    return f"{escape(name)}\\textsuperscript{{{escape(mark)}}}" if mark else escape(name)


def _show(cell: Cell) -> str:
    number, sign, spread = cell.text.partition(" ± ")
    shown = rf"\textbf{{{escape(number)}}}" if cell.is_best else escape(number)
    return rf"{shown}\,{{\scriptsize$\pm$\,{escape(spread)}}}" if sign else shown
