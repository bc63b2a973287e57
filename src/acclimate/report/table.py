"""One table for every format: terminal, Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

#: Text of a cell without a value.
ABSENT = "–"

#: What a column contains: names of rows, which every part of a split table repeats; numbers;
#: numbers that may come after the others where space is short; or text, which may wrap.
ColumnKind = Literal["label", "value", "detail", "words"]

_HEAD_WIDTH = 9  # characters of a folded heading
_MOST_FLAT_HEADS = 9  # LaTeX tables with more columns have upright headings
_LATEX_HEADER = r"% needs \usepackage{booktabs} and \usepackage{graphicx} in the preamble"
_MARKDOWN = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_{}[]<>|#~"})
# Signs, each with its name in a formula.
_SIGNS = "±pm ×times ✗times ✓checkmark †dagger ‡ddagger →rightarrow ≤leq ≥geq αalpha θtheta λlambda"
_LATEX = str.maketrans(
    {
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
        "−": "$-$",
        "–": "--",
        "…": r"\dots{}",
        "⁻": r"$^{-}$",
        "ⁿ": r"$^{n}$",
        **{own[0]: rf"$\{own[1:]}$" for own in _SIGNS.split()},
    }
)


@dataclass(frozen=True)
class Column:
    """A column: its heading and what it contains."""

    name: str
    kind: ColumnKind = "value"

    @property
    def is_text(self) -> bool:
        """Whether the column contains text, which is aligned to the left."""
        return self.kind in ("label", "words")


@dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes:
        text: What is shown; a spread after " ± " is set apart.
        value: What the cell is sorted by, and what a CSV file contains; None if there is nothing.
        best: Whether it is the best of its column.
        mark: Raised after the text.
        about: A remark after the text, such as "(oracle)".
        style: Style on a terminal.
        links: Addresses with text and description, in HTML instead of the text.
    """

    text: str
    value: float | str | None = None
    best: bool = False
    mark: str = ""
    about: str = ""
    style: str = ""
    links: tuple[tuple[str, str, str], ...] = ()

    @property
    def whole(self) -> str:
        """The text with the remark."""
        return f"{self.text} {self.about}" if self.about else self.text

    @property
    def number(self) -> str:
        """The text without its spread."""
        return self.text.partition(" ± ")[0]

    @property
    def spread(self) -> str:
        """What follows " ± "; may be empty."""
        return self.text.partition(" ± ")[2]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        columns: Headings and kinds.
        rows: A cell for each column.
        name: A few words, for a title and for screen readers.
        caption: What the numbers are.
        best: What the best cells are the best of; empty if none are marked.
        notes: Sentences below the table.
        references: Rows that the others are compared with, such as the source model.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    name: str = ""
    caption: str = ""
    best: str = ""
    notes: tuple[str, ...] = ()
    references: frozenset[int] = frozenset()

    @classmethod
    def of(cls, heads: Sequence[str], rows: Sequence[Sequence[Any]], **more: Any) -> Table:
        """Return a table of plain values; the first column contains names."""
        columns = tuple(Column(head, "value" if i else "label") for i, head in enumerate(heads))
        return cls(columns, tuple(tuple(map(plain, row)) for row in rows), **more)

    def describe(self, mark: str = "Bold") -> str:
        """Return the caption with what the mark of the best cells means."""
        best = f"{mark}: {self.best}" if self.best else ""
        return " ".join(text for text in (self.caption, best) if text)

    def details_last(self) -> Table:
        """Return the table with its details after all other columns."""
        order = sorted(range(len(self.columns)), key=lambda i: self.columns[i].kind == "detail")
        return self._take(order)

    # Terminal

    def show(self, console: Console) -> None:
        """Print the table with its caption and notes."""
        for part in self.to_rich(console):
            console.print(part)
        for text in (self.describe("Bold" if console.is_terminal else "Marked *"), *self.notes):
            if text:
                console.print(text, style="dim")

    def to_rich(self, console: Console) -> list[RichTable]:
        """Return tables that fit the width of a console.

        Where the table is too wide, its details follow in tables of their own.
        """
        from rich.measure import Measurement

        options = console.options.update(max_width=10_000)

        def fits(columns: Sequence[int]) -> bool:
            made = self._take(columns)._make_rich(console)
            return Measurement.get(console, options, made).maximum <= console.width

        kinds = [column.kind for column in self.columns]
        labels = [i for i, kind in enumerate(kinds) if kind == "label"]
        details = [i for i, kind in enumerate(kinds) if kind == "detail"]
        if not details or fits(range(len(kinds))):
            return [self._make_rich(console)]
        parts = [[i for i, kind in enumerate(kinds) if kind != "detail"]]
        for index in details:
            if len(parts) > 1 and fits([*parts[-1], index]):
                parts[-1].append(index)
            else:
                parts.append([*labels, index])
        return [self._take(part)._make_rich(console) for part in parts]

    def _make_rich(self, console: Console) -> RichTable:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        # Bold is not visible in a file: a star stands there instead.
        star, blank = ("", "") if console.is_terminal else ("*", " ")
        marked = [any(row[i].best for row in self.rows) for i in range(len(self.columns))]
        made = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for column in self.columns:
            if column.is_text:
                made.add_column(column.name, overflow="fold")
            else:
                made.add_column(_fold(column.name), justify="right", no_wrap=True)
        for row in self.rows:
            texts = []
            for cell, has_best in zip(row, marked, strict=True):
                end = (star if cell.best else blank) if has_best else ""
                text = f"{cell.whole} {cell.mark}" if cell.mark else cell.whole
                texts.append(Text(text + end, style="bold" if cell.best else cell.style))
            made.add_row(*texts)
        return made

    # Files

    def to_markdown(self) -> str:
        """Return the table in Markdown, without caption and notes."""
        sides = "".join("---|" if column.is_text else "---:|" for column in self.columns)
        heads = " | ".join(escape_markdown(column.name) for column in self.columns)
        rows = [" | ".join(map(_to_markdown, row)) for row in self.rows]
        return "\n".join([f"| {heads} |", f"|{sides}", *(f"| {row} |" for row in rows)])

    def to_latex(self) -> str:
        """Return the table in LaTeX, for a document that loads `booktabs` and `graphicx`."""
        heads = [escape_latex(column.name.replace("_", " ")) for column in self.columns]
        sides = ["l" if column.is_text else "r" for column in self.columns]
        if len(heads) > _MOST_FLAT_HEADS:
            forms = {"l": "{}", "r": r"\rotatebox{{90}}{{{}}}"}
            heads = [forms[side].format(head) for head, side in zip(heads, sides, strict=True)]
        body = []
        for index, row in enumerate(self.rows):
            if index and index - 1 in self.references and index not in self.references:
                body.append(r"\midrule")
            body.append(" & ".join(map(_to_latex, row)) + r" \\")
        title = " ".join(filter(None, (f"{self.name}." if self.name else "", self.describe())))
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape_latex(title)}}}",
            r"\setlength{\tabcolsep}{3pt}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{''.join(sides)}}}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
        ]
        small = r"\par\smallskip\parbox{{\linewidth}}{{\footnotesize {}}}"
        lines += [small.format(escape_latex(note)) for note in self.notes]
        return "\n".join([*lines, r"\end{table}"])

    def to_csv(self) -> str:
        """Return a CSV file with all digits; lines end as in RFC 4180."""
        file = io.StringIO(newline="")
        writer = csv.writer(file)
        writer.writerow([column.name for column in self.columns])
        writer.writerows([_to_csv(cell) for cell in row] for row in self.rows)
        return file.getvalue()

    def to_html(self, name: str = "") -> str:
        """Return a scrollable table, without caption and notes; its name is for screen readers."""
        return render("table.html", table=self, name=name or self.name)

    def _take(self, columns: Sequence[int]) -> Table:
        rows = tuple(tuple(row[i] for i in columns) for row in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in columns), rows=rows)


@dataclass(frozen=True)
class Document:
    """Tables under headings, with the sentences around them.

    Attributes:
        title: May be empty.
        parts: Headings, which may be empty, each with its tables.
        lead: Sentences that a reader must not miss.
        notes: Sentences on all tables.
    """

    title: str
    parts: tuple[tuple[str, tuple[Table, ...]], ...]
    lead: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def show(self, console: Console) -> None:
        """Print everything; the lead comes last, where it is seen."""
        if self.title:
            console.print(f"{self.title}\n", style="bold")
        for heading, tables in self.parts:
            if heading:
                console.print(heading, style="bold")
            for table in tables:
                table.show(console)
                console.print()
        for texts, style in ((self.notes, "dim"), (("", *self.lead), "bold")):
            for text in texts:
                console.print(text, style=style)

    def to_markdown(self) -> str:
        """Return everything in Markdown."""
        blocks = [f"# {escape_markdown(self.title)}"] if self.title else []
        blocks += map(escape_markdown, self.lead)
        for heading, tables in self.parts:
            blocks += [f"## {escape_markdown(heading)}"] if heading else []
            for table in tables:
                texts = (table.describe(), *table.notes)
                blocks += [table.to_markdown(), *(escape_markdown(text) for text in texts if text)]
        if self.notes:
            lines = "\n".join(f"- {escape_markdown(text)}" for text in self.notes)
            blocks += ["## Notes", lines]
        return "\n\n".join(blocks) + "\n"

    def to_latex(self) -> str:
        """Return the tables in LaTeX; the notes are those of the first table of each part."""
        blocks = [f"% {' '.join(self.title.split())}\n{_LATEX_HEADER}"]
        for _, tables in self.parts:
            first = replace(tables[0], notes=(*tables[0].notes, *self.notes))
            blocks += [table.to_latex() for table in (first, *tables[1:])]
        return "\n\n".join(blocks) + "\n"


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("acclimate.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, /, **values: Any) -> Markup:
    """Return a template of this package: every value is escaped unless it is markup already."""
    return Markup(_environment().get_template(template).render(**values))


def plain(value: Any) -> Cell:
    """Return a cell of a plain value; a cell is returned as it is."""
    if isinstance(value, Cell):
        return value
    return Cell(ABSENT) if value is None else Cell(str(value), value)


def format_number(value: float, digits: int = 1, sign: str = "") -> str:
    """Return a number with a minus sign as wide as a plus; `sign` "+" is for differences.

    >>> format_number(-1.25), format_number(3, sign="+"), format_number(0.123, 3)
    ('−1.2', '+3.0', '0.123')
    """
    return f"{value:{sign}.{digits}f}".replace("-", "−")


def format_ms(value: float) -> str:
    """Return milliseconds with as many digits as mean something.

    >>> format_ms(0.0432), format_ms(1.816), format_ms(12.34), format_ms(1234.5)
    ('0.043', '1.8', '12', '1234')
    """
    if value >= 10:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def escape_markdown(text: str) -> str:
    r"""Return a text in which nothing has a meaning in Markdown.

    >>> escape_markdown("a_b | *c*")
    'a\\_b \\| \\*c\\*'
    """
    return " ".join(text.split()).translate(_MARKDOWN)


def escape_latex(text: str) -> str:
    r"""Return a text in which nothing has a meaning in LaTeX.

    >>> escape_latex("a_b & 5 %")
    'a\\_b \\& 5 \\%'
    """
    return " ".join(text.split()).translate(_LATEX)


def _to_markdown(cell: Cell) -> str:
    return _to_text(cell, escape_markdown, "**{}**", " ± {}", "<sup>{}</sup>")


def _to_latex(cell: Cell) -> str:
    marks = (r"\textbf{{{}}}", r"\,{{\scriptsize$\pm$\,{}}}", r"\textsuperscript{{{}}}")
    return _to_text(cell, escape_latex, *marks)


def _to_text(cell: Cell, escape: Callable[[str], str], best: str, spread: str, mark: str) -> str:
    forms = {best if cell.best else "{}": cell.number, spread: cell.spread}
    forms |= {" {}": cell.about, mark: cell.mark}
    return "".join(form.format(escape(text)) for form, text in forms.items() if text)


def _to_csv(cell: Cell) -> str:
    """Return what a CSV file contains; text that a spreadsheet would execute gets an apostrophe."""
    if isinstance(cell.value, int | float):
        return str(cell.value).lower() if isinstance(cell.value, bool) else repr(cell.value)
    text = cell.value if isinstance(cell.value, str) else cell.whole.replace(ABSENT, "")
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _fold(head: str) -> str:
    """Return a heading over several lines, as numbers are narrow."""
    whole = head.replace("_", " ").replace(" %", "\u00a0%")  # a number and its sign stay together
    return "\n".join(textwrap.wrap(whole, _HEAD_WIDTH, break_long_words=False))


def mark_best(
    cells: Sequence[Cell],
    competes: Sequence[bool],
    choose: Callable[..., float] = min,
    digits: int = 1,
) -> list[Cell]:
    """Return the cells of a column with the best marked, as far as the shown digits tell.

    Nothing more is marked unless at least two cells with a number compete.
    """
    rivals = {
        place: round(cell.value, digits)
        for place, (cell, own) in enumerate(zip(cells, competes, strict=True))
        if own and isinstance(cell.value, int | float)
    }
    best = choose(rivals.values()) if len(rivals) > 1 else math.nan
    return [
        replace(cell, best=cell.best or rivals.get(place) == best)
        for place, cell in enumerate(cells)
    ]
