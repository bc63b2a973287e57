"""Tables and verdicts as text: lines for a terminal, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acclimate.bench.reports.latex import escape as escape_latex
from acclimate.bench.reports.markdown import escape as escape_markdown
from acclimate.corruptions import BENCHMARK
from acclimate.paper.cells import Measure
from acclimate.paper.claims import ENOUGH, RESAMPLES, Verdict
from acclimate.paper.tables import PaperRow, PaperTable

# A table with more is wider than a page, and made to fit.
_MOST_COLUMNS = 9

SIGNS = {"holds": "✓", "does not hold": "✗", "cannot be told": "?"}

#: What is meant by a verdict, to stand beside a list of them.
HOW = (
    f"Verdicts: a paired bootstrap over seeds and corruptions or domains, {RESAMPLES} resamples "
    f"with a fixed seed; something holds, or does not, from a confidence of {ENOUGH:.0%} on. n "
    "pairs cannot show more than 1 − 2⁻ⁿ."
)


@dataclass(frozen=True)
class Line:
    """A line of a table: what it belongs to, what it is, and its cells, some of them the best."""

    label: str
    kind: str
    cells: tuple[str, ...]
    best: tuple[bool, ...]


def lay_out(table: PaperTable, setup: str) -> tuple[tuple[str, ...], list[Line]]:
    """Return heads and lines of one setup.

    With one column, a line a row; with several, a line for each of published, ours and difference.
    """
    rows = table.setups[setup]
    ran = any(row.is_measured for row in table.rows)
    best = table.find_best(setup)
    if len(table.columns) == 1:
        lines = []
        for row in rows:
            one = (_published(row)[0], _ours(row, table.columns)[0], _difference(row)[0])
            lines.append(
                Line(_name(row, ran), "", one, (False, best.get((row.label, 0), False), False))
            )
        return ("published", "ours", "difference"), lines
    lines = []
    for row in rows:
        n = len(table.columns)
        name = _name(row, ran)
        if row.is_published:
            lines.append(Line(name, "published", _published(row, table.columns), (False,) * n))
            name = ""
        if row.is_measured:
            marks = tuple(best.get((row.label, index), False) for index in range(n))
            lines.append(Line(name, "ours", _ours(row, table.columns), marks))
        if row.is_published and row.is_measured:
            cells = _difference(row, table.columns)
            lines.append(Line("", "difference", cells, (False,) * n))
    return ("", *(name.replace("_", " ") for name in table.columns)), lines


def describe_verdict(verdict: Verdict) -> str:
    """Return what became of a claim, without the claim itself."""
    parts = []
    if verdict.margin is not None:
        parts.append(f"{verdict.margin:+.2f} points".replace("-", "−"))
    if verdict.confidence:
        parts.append(f"confidence {min(verdict.confidence, 0.9999):.1%}")
    if verdict.n_seeds:
        seeds = f"{verdict.n_seeds} seed{'s' if verdict.n_seeds > 1 else ''}"
        parts.append(f"{seeds} × {verdict.n_domains} {verdict.units}")
    if verdict.reason:
        parts.append(verdict.reason)
    return f"{verdict.verdict} ({', '.join(parts)})" if parts else verdict.verdict


def describe_published(verdict: Verdict) -> str:
    """Return whether the claim holds in the paper's own numbers."""
    if verdict.published is None:
        return "not in the text"
    return "yes" if verdict.published else "no"


def render_markdown(
    table: PaperTable, verdicts: Sequence[Verdict], facts: Sequence[str] = ()
) -> str:
    """Return the table, the verdicts and all notes."""
    parts = [f"# {table.id}: {table.title}", f"{table.place}; {table.unit}.", *facts]
    for setup in table.setups:
        heads, lines = lay_out(table, setup)
        parts += [f"## {setup}", _grid_markdown(heads, lines)]
    if verdicts:
        rows = "\n".join(
            f"| {SIGNS[own.verdict]} | {escape_markdown(own.claim)} | {escape_markdown(own.setup)} "
            f"| {escape_markdown(describe_verdict(own))} | {describe_published(own)} |"
            for own in verdicts
        )
        head = "| | claim | where | in our run | in the paper's numbers |\n|---|---|---|---|---|\n"
        parts += ["## Claims", head + rows, HOW]
    if table.notes:
        parts += ["## Notes", "\n".join(f"- {escape_markdown(note)}" for note in table.notes)]
    return "\n\n".join(parts) + "\n"


def render_latex(table: PaperTable) -> str:
    """Return the table for LaTeX with booktabs; the best of ours is bold, as in the paper."""
    parts = [
        f"% {table.id}: {table.title} ({table.place}; {table.unit})\n"
        r"% needs \usepackage{booktabs} and \usepackage{graphicx} in the preamble"
    ]
    for setup in table.setups:
        heads, lines = lay_out(table, setup)
        several = len(table.columns) > 1
        columns = "ll" if several else "l"
        wide = len(heads) > _MOST_COLUMNS
        body = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape_latex(f'{table.title}: {setup} ({table.unit})')}}}",
            *([r"\resizebox{\textwidth}{!}{%"] if wide else []),
            rf"\begin{{tabular}}{{{columns}{'r' * (len(heads) - several)}}}",
            r"\toprule",
            " & ".join(["", *(escape_latex(head) for head in heads)]) + r" \\",
            r"\midrule",
        ]
        for line in lines:
            cells = [
                rf"\textbf{{{escape_latex(text)}}}" if is_best else escape_latex(text)
                for text, is_best in zip(line.cells, line.best, strict=True)
            ]
            lead = [escape_latex(line.label), *([line.kind] if several else [])]
            body.append(" & ".join([*lead, *cells]) + r" \\")
        end = r"\end{tabular}}" if wide else r"\end{tabular}"
        parts.append("\n".join([*body, r"\bottomrule", end, r"\end{table}"]))
    return "\n\n".join(parts) + "\n"


def _grid_markdown(heads: Sequence[str], lines: Sequence[Line]) -> str:
    several = bool(heads) and heads[0] == ""
    head = ["", *heads]
    rows = [f"| {' | '.join(head)} |", f"|---|{'---|' if several else ''}{'---:|' * _n(heads)}"]
    for line in lines:
        cells = [
            f"**{escape_markdown(text)}**" if is_best else escape_markdown(text)
            for text, is_best in zip(line.cells, line.best, strict=True)
        ]
        lead = [escape_markdown(line.label), *([line.kind] if several else [])]
        rows.append(f"| {' | '.join([*lead, *cells])} |")
    return "\n".join(rows)


def _n(heads: Sequence[str]) -> int:
    return len([head for head in heads if head])


def _name(row: PaperRow, ran: bool) -> str:
    missing = "" if row.is_published else row.absent
    if ran and not row.is_measured:
        missing = "not run"
    marks = ", ".join(mark for mark in (row.mark, missing) if mark)
    return f"{row.label} ({marks})" if marks else row.label


def _published(row: PaperRow, columns: Sequence[str] = ("",)) -> tuple[str, ...]:
    return tuple(
        (row.absent if len(columns) == 1 else "–") if value is None else _number(value, name)
        for value, name in zip(row.published, columns, strict=True)
    )


def _ours(row: PaperRow, columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        "–" if own is None else _measure(own, name)
        for own, name in zip(row.ours, columns, strict=True)
    )


def _difference(row: PaperRow, columns: Sequence[str] = ("",)) -> tuple[str, ...]:
    return tuple(
        "–" if value is None else f"{value:+.{_digits(name)}f}".replace("-", "−")
        for value, name in zip(row.differences, columns, strict=True)
    )


def _measure(own: Measure, column: str) -> str:
    text = _number(own.mean, column)
    if own.deviation is None or column in BENCHMARK:
        return text
    return f"{text} ± {own.deviation:.2f}"


def _number(value: float, column: str) -> str:
    return f"{value:.{_digits(column)}f}".replace("-", "−")


def _digits(column: str) -> int:
    """Return the decimals of a column: the paper has one for a corruption, two for a mean."""
    return 1 if column in BENCHMARK else 2
