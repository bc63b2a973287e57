"""Tables and verdicts of the paper's experiments as tables of a report, and as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from acclimate.corruptions import BENCHMARK
from acclimate.paper.claims import ENOUGH, RESAMPLES, Verdict
from acclimate.paper.tables import PaperRow, PaperTable
from acclimate.report.pages import render_tables
from acclimate.report.stats import Measure
from acclimate.report.table import ABSENT, LATEX_HEADER, Cell, Column, Table, escape_markdown, plain

SIGNS = {"holds": "✓", "does not hold": "✗", "cannot be told": "?"}
_STYLES = {"holds": "green", "does not hold": "bold red", "cannot be told": "yellow"}

_HOW = (
    f"Verdicts: a paired bootstrap over seeds and corruptions or domains, {RESAMPLES} resamples "
    f"with a fixed seed; something holds, or does not, from a confidence of {ENOUGH:.0%} on. n "
    "pairs cannot show more than 1 − 2⁻ⁿ."
)


def make_table(table: PaperTable, setup: str) -> Table:
    """Return the rows of one setup, the best of ours marked.

    With one column, a line for each row; with several, a line for each of published, ours and
    difference.
    """
    ran = any(row.is_measured for row in table.rows)
    best = table.find_best(setup)
    rows: list[tuple[Cell, ...]] = []
    if len(table.columns) == 1:
        heads = [Column("", "label"), *map(Column, ("published", "ours", "difference"))]
        for row in table.setups[setup]:
            published, ours, difference = _lines(row, table, best)
            if row.published[0] is None:
                published = (Cell(row.absent),)
            rows.append((_name(row, ran), *published, *ours, *difference))
    else:
        names = [name.replace("_", " ") for name in table.columns]
        heads = [Column("", "label"), Column("", "label"), Column(names[0])]
        heads += [Column(name, "detail") for name in names[1:]]
        for row in table.setups[setup]:
            kinds = [("published", row.is_published), ("ours", row.is_measured)]
            kinds.append(("difference", row.is_published and row.is_measured))
            name = _name(row, ran)
            for (kind, is_there), cells in zip(kinds, _lines(row, table, best), strict=True):
                if is_there:
                    rows.append((name, plain(kind), *cells))
                    name = Cell("")
    return Table(tuple(heads), tuple(rows), name=f"{table.title}: {setup} ({table.unit})")


def make_claims(verdicts: Sequence[Verdict]) -> Table:
    """Return what became of each claim."""
    heads = ("", "claim", "where", "in our run", "in the paper's numbers")
    rows = [
        (
            Cell(SIGNS[own.verdict], style=_STYLES[own.verdict]),
            plain(own.claim),
            plain(own.setup),
            plain(describe_verdict(own)),
            plain({None: "not in the text", True: "yes", False: "no"}[own.published]),
        )
        for own in verdicts
    ]
    columns = tuple(Column(head, "words") for head in heads)
    return Table(columns, tuple(rows), name="Claims", notes=(_HOW,))


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


def render_markdown(
    table: PaperTable, verdicts: Sequence[Verdict], facts: Sequence[str] = ()
) -> str:
    """Return the table, the verdicts and all notes."""
    parts = [f"# {table.id}: {table.title}", f"{table.place}; {table.unit}.", *facts]
    for setup in table.setups:
        parts += [f"## {setup}", make_table(table, setup).to_markdown()]
    if verdicts:
        parts += ["## Claims", make_claims(verdicts).to_markdown(), _HOW]
    if table.notes:
        parts += ["## Notes", "\n".join(f"- {escape_markdown(note)}" for note in table.notes)]
    return "\n\n".join(parts) + "\n"


def render_latex(table: PaperTable) -> str:
    """Return the table for LaTeX with booktabs; the best of ours is bold, as in the paper."""
    parts = [f"% {table.id}: {table.title} ({table.place}; {table.unit})\n{LATEX_HEADER}"]
    parts += [make_table(table, setup).to_latex() for setup in table.setups]
    return "\n\n".join(parts) + "\n"


def render_page(
    table: PaperTable,
    verdicts: Sequence[Verdict],
    facts: Sequence[str] = (),
    files: Mapping[str, str | bytes] | None = None,
) -> str:
    """Return a page with the table, the pictures among the files, the verdicts and all notes."""
    parts = [(setup, make_table(table, setup)) for setup in table.setups]
    parts += [("Claims", make_claims(verdicts))] if verdicts else []
    pictures = [(n, own) for n, own in (files or {}).items() if n.endswith((".svg", ".png"))]
    lead = [" ".join([f"{table.place}; {table.unit}.", *facts])]
    title = f"{table.id}: {table.title}"
    return render_tables(title, "acclimate reproduce", parts, lead, table.notes, pictures)


def _name(row: PaperRow, ran: bool) -> Cell:
    missing = "" if row.is_published else row.absent
    if ran and not row.is_measured:
        missing = "not run"
    marks = ", ".join(mark for mark in (row.mark, missing) if mark)
    return Cell(row.label, row.label, about=f"({marks})" if marks else "")


def _lines(
    row: PaperRow, table: PaperTable, best: Mapping[tuple[str, int], bool]
) -> tuple[tuple[Cell, ...], tuple[Cell, ...], tuple[Cell, ...]]:
    """Return the cells of published, ours and difference."""
    names = table.columns
    ours = tuple(
        Cell(ABSENT)
        if own is None
        else Cell(_measure(own, name), own.mean, best.get((row.label, index), False))
        for index, (own, name) in enumerate(zip(row.ours, names, strict=True))
    )
    published, differences = (
        tuple(
            Cell(ABSENT)
            if value is None
            else Cell(f"{value:{sign}.{_digits(name)}f}".replace("-", "−"), value)
            for value, name in zip(values, names, strict=True)
        )
        for values, sign in ((row.published, ""), (row.differences, "+"))
    )
    return published, ours, differences


def _measure(own: Measure, column: str) -> str:
    text = f"{own.mean:.{_digits(column)}f}".replace("-", "−")
    if own.deviation is None or column in BENCHMARK:
        return text
    return f"{text} ± {own.deviation:.2f}"


def _digits(column: str) -> int:
    """Return the decimals of a column: the paper has one for a corruption, two for a mean."""
    return 1 if column in BENCHMARK else 2
