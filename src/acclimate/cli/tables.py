"""Tables of errors on the terminal, and lists of names as they are typed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from acclimate.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as TextTable
    from rich.text import Text

    from acclimate.report import Table
    from acclimate.report.columns import Column

# More shifts than this are rows rather than columns, even where nothing limits the width.
_MOST_COLUMNS = 8


def show_table(
    console: Console, table: Table, more: Sequence[Column] = (), notes: Sequence[str] = ()
) -> None:
    """Print the table, methods as rows; turned if that is too wide.

    Args:
        console: Where to.
        table: Errors and speed.
        more: Columns to show besides.
        notes: Sentences to stand below it.
    """
    from rich.console import Console as Plain
    from rich.measure import Measurement

    columns = [*table.columns, *more]
    cells = _cells(columns, stars=not console.is_terminal)
    upright = _lay_out(
        ["method", *(column.name.replace("_", "\n") for column in columns)],
        [row.label for row in table.rows],
        zip(*cells, strict=True),
    )
    needed = Measurement.get(console, console.options.update(max_width=10_000), upright).maximum
    if needed <= console.width:
        console.print(upright)
    elif console.is_terminal or len(table.domains) > _MOST_COLUMNS:
        names = [column.name for column in columns]
        turned = _lay_out(["", *(row.label for row in table.rows)], names, cells)
        width = None if console.is_terminal else 10_000
        console.print(turned, width=width, soft_wrap=width is not None)
    else:  # a file or a pipe has no width: nothing needs to be turned or cut there
        Plain(file=console.file, width=needed).print(upright)
    spread = f"; mean ± standard deviation over {table.n_seeds} seeds" if table.n_seeds > 1 else ""
    best = "bold" if console.is_terminal else "marked *"
    overlap = "; mIoU: mean overlap of the classes in %, more is better"
    told = overlap if any(row.miou is not None for row in table.rows) else ""
    if any(row.by_source is not None for row in table.rows):
        told += "; estimated: the mean error as the guard estimates it without labels"
        told += "; by source: share of images in % that the source model answered"
    console.print(f"error in %{spread}{told}; the best of each is {best}", style="dim")
    for note in notes:
        console.print(note, style="dim", soft_wrap=not console.is_terminal)
    console.print()


def split_names(text: str) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def split_numbers(text: str, option: str) -> tuple[int, ...]:
    """Return whole numbers that are separated by commas, the value of an option."""
    parts = split_names(text)
    if not all(part.isdecimal() for part in parts):
        raise BadInput(
            "malformed",
            f'Expected numbers such as 5 or 1,3,5, found "{text}".',
            option=option,
            found=text,
        )
    return tuple(int(part) for part in parts)


def _cells(columns: Sequence[Column], stars: bool) -> list[list[Text]]:
    """Return the cells by column; the best are bold, or have a star where nothing can be bold."""
    from rich.text import Text

    mark, blank = ("*", " ") if stars else ("", "")
    return [
        [
            Text(text + mark, style="bold") if is_best else Text(text + blank)
            for text, is_best in zip(column.texts, column.best, strict=True)
        ]
        for column in columns
    ]


def _lay_out(
    heads: Sequence[str], names: Sequence[str], rows: Iterable[Sequence[Text]]
) -> TextTable:
    from rich import box
    from rich.table import Table as TextTable

    table = TextTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index else "left", no_wrap=True)
    for name, cells in zip(names, rows, strict=True):
        table.add_row(name, *cells)
    return table
