"""Tables and verdicts of the paper's experiments on the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from acclimate.paper import PaperTable, Verdict

_STYLES = {"holds": "green", "does not hold": "bold red", "cannot be told": "yellow"}


def show_list(console: Console) -> None:
    """Print all experiments: id, number in the supplement, and what it is."""
    from rich import box
    from rich.table import Table

    from acclimate.paper.catalog import EXPERIMENTS, WHOLES, list_aliases
    from acclimate.paper.scales import SCALES

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("id", "also", "what"):
        table.add_column(head, no_wrap=head != "what")
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, ", ".join(list_aliases(name)), experiment.shows)
    console.print(table)
    wholes = "; ".join(f"{name} = {', '.join(parts)}" for name, parts in WHOLES.items())
    console.print(f"several at once: {wholes}", style="dim", soft_wrap=True)
    console.print(f"each at the scales {', '.join(SCALES)}", style="dim", soft_wrap=True)


def show_table(console: Console, table: PaperTable, scale: str = "") -> None:
    """Print published numbers, ours and the difference, setup by setup."""
    at = f", {scale}" if scale else ""
    console.print(f"{table.id}{at}: {table.title}", style="bold")
    console.print(f"{table.place}; {table.unit}", style="dim", soft_wrap=True)
    for setup in table.setups:
        console.print()
        console.print(setup, style="bold")
        _print_fitting(console, table, setup)
    if not table.rows:
        console.print("The text has no numbers of it.")
    for note in table.notes:
        console.print(f"note: {note}", style="dim", soft_wrap=not console.is_terminal)
    console.print()


def show_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Print what became of each claim; those that do not hold no less than the others."""
    from acclimate.paper.render import HOW, SIGNS, describe_published, describe_verdict

    if not verdicts:
        return
    console.print("What the paper draws from it", style="bold")
    for own in verdicts:
        console.print(
            f"{SIGNS[own.verdict]} {own.claim} · {own.setup}",
            style=_STYLES[own.verdict],
            soft_wrap=not console.is_terminal,
        )
        text = f"  {describe_verdict(own)}; in the paper's own numbers: {describe_published(own)}"
        console.print(text, style="dim", soft_wrap=not console.is_terminal)
    console.print(HOW, style="dim", soft_wrap=not console.is_terminal)
    console.print()


def _print_fitting(console: Console, table: PaperTable, setup: str) -> None:
    """Print the table of a setup; where it is too wide for the terminal, its first column only."""
    from rich.console import Console as Plain
    from rich.measure import Measurement

    made = _make(table, setup)
    needed = Measurement.get(console, console.options.update(max_width=10_000), made).maximum
    if needed <= console.width:
        console.print(made)
    elif console.is_terminal:
        rows = [
            dataclasses.replace(row, published=row.published[:1], ours=row.ours[:1])
            for row in table.rows
        ]
        first = dataclasses.replace(table, columns=table.columns[:1], rows=tuple(rows))
        console.print(_make(first, setup))
        hidden = ", ".join(name.replace("_", " ") for name in table.columns[1:])
        console.print(f"{table.columns[0]} only; table.md has the rest: {hidden}", style="dim")
    else:  # a file or a pipe has no width
        Plain(file=console.file, width=needed).print(made)


def _make(table: PaperTable, setup: str) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from acclimate.paper.render import lay_out

    heads, lines = lay_out(table, setup)
    several = len(table.columns) > 1
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, head in enumerate(["", *heads]):
        left = index == 0 or (several and index == 1)
        name = head.replace(" ", "\n") if several else head
        made.add_column(name, justify="left" if left else "right", no_wrap=True)
    for line in lines:
        cells = [
            Text(text, style="bold" if is_best else "")
            for text, is_best in zip(line.cells, line.best, strict=True)
        ]
        made.add_row(line.label, *([line.kind] if several else []), *cells)
    return made
