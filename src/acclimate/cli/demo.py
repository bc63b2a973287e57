"""`acclimate demo`: the whole thing on a task that comes with the package."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli.terminal import get_console, make_facts, show_progress, show_warnings
from acclimate.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as TextTable
    from rich.text import Text

    from acclimate.report import Table


def demo(
    methods: Annotated[
        str, typer.Option(help="Methods, separated by commas.")
    ] = "source,norm,tent,swr_nsp",
    corruptions: Annotated[
        str, typer.Option(help="Shifts, separated by commas.")
    ] = "gaussian_noise,defocus_blur,fog,contrast,pixelate,jpeg_compression",
    images: Annotated[int, typer.Option(help="Test images of each shift.")] = 1400,
    batch_size: Annotated[int, typer.Option(help="Images a batch.")] = 200,
    severity: Annotated[int, typer.Option(help="Of the shifts, from 1 to 5.")] = 5,
    seeds: Annotated[int, typer.Option(help="How many seeds; with several, mean ± spread.")] = 1,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    json: Annotated[
        Path | None, typer.Option(help="Where to write all numbers, if at all.")
    ] = None,
) -> None:
    """Adapt a model to several shifts and write a report; needs no data.

    A small model for computer-made images comes with the package. Its artifact is prepared, then
    every shift is streamed through every method. Takes minutes on two cores.

    Example: `acclimate demo --seeds 3 --json demo.json`
    """
    for path in (out, json):
        _check_place(path)
    from acclimate.demo import DemoSettings, run_demo
    from acclimate.report import render_page
    from acclimate.storage import write_atomically

    settings = DemoSettings(
        methods=_names(methods),
        corruptions=_names(corruptions),
        images=images,
        batch_size=batch_size,
        severity=severity,
        seeds=seeds,
    )
    with show_warnings(), show_progress() as progress:
        result = run_demo(settings, progress)
    write_atomically(out, render_page(result.report()).encode())
    if json is not None:
        write_atomically(json, result.to_json().encode())
    console = get_console()
    show_table(console, result.table)
    console.print(result.finding, style="bold")
    console.print()
    console.print(make_facts("How it was measured", {**result.protocol, **result.origin}))
    console.print(f"\nReport: {out.resolve()}", soft_wrap=True)
    if json is not None:
        console.print(f"Numbers: {json.resolve()}", soft_wrap=True)


def show_table(console: Console, table: Table) -> None:
    """Print the table, methods as rows; turned if the terminal is too narrow for that."""
    from rich.console import Console as Plain
    from rich.measure import Measurement

    cells = _cells(table, stars=not console.is_terminal)
    upright = _lay_out(
        ["method", *(column.name.replace("_", "\n") for column in table.columns)],
        [row.method for row in table.rows],
        zip(*cells, strict=True),
    )
    needed = Measurement.get(console, console.options.update(max_width=10_000), upright).maximum
    if needed <= console.width:
        console.print(upright)
    elif console.is_terminal:
        names = [column.name for column in table.columns]
        console.print(_lay_out(["", *(row.method for row in table.rows)], names, cells))
    else:  # a file or a pipe has no width: nothing needs to be turned or cut there
        Plain(file=console.file, width=needed).print(upright)
    spread = f"; mean ± standard deviation over {table.n_seeds} seeds" if table.n_seeds > 1 else ""
    best = "bold" if console.is_terminal else "marked *"
    console.print(f"error in %{spread}; the best of each is {best}", style="dim")
    console.print()


def _cells(table: Table, stars: bool) -> list[list[Text]]:
    """Return the cells by column; the best are bold, or have a star where nothing can be bold."""
    from rich.text import Text

    mark, blank = ("*", " ") if stars else ("", "")
    return [
        [
            Text(text + mark, style="bold") if is_best else Text(text + blank)
            for text, is_best in zip(column.texts, column.best, strict=True)
        ]
        for column in table.columns
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


def _check_place(path: Path | None) -> None:
    """Refuse a file that cannot be written before minutes are spent on its content."""
    if path is None:
        return
    folder = path.resolve().parent
    if not folder.is_dir():
        raise BadInput(f"cannot write {path}: there is no folder {folder}. Create it first.")
    if path.is_dir():
        raise BadInput(f"cannot write {path}: it is a folder. Give the name of a file in it.")
    if not os.access(folder, os.W_OK):
        raise BadInput(f"cannot write {path}: no permission in {folder}. Choose another folder.")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
