"""What every command prints with: results to stdout; progress, warnings and errors to stderr."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.commands.base import FILE_WIDTH
from acclimate.errors import AcclimateError, AcclimateWarning

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MOST_FILES = 10


def get_console(stderr: bool = False) -> Console:
    """Return a console for the current stdout or stderr; without colours if they are not wanted."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_WIDTH  # a file or a pipe has no width of its own
    return console


def printable(text: str) -> str:
    """Return the text with bytes that are no text, as in some file names, replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# Messages, on stderr ------------------------------------------------------------------------------


def print_lines(lines: Iterable[str], style: str = "", most: int | None = None) -> None:
    """Print messages to stderr, at most so many of them."""
    console, lines = get_console(stderr=True), list(lines)
    for line in lines[:most]:
        console.print(printable(line), style=style, soft_wrap=True)
    if most is not None and len(lines) > most:
        console.print(f"  (+ {len(lines) - most} more)")


def tell(text: str) -> None:
    """Print what happens besides the work."""
    print_lines([text])


def note(text: str) -> None:
    """Print a note on what a command does."""
    print_lines([f"note: {text}"], "yellow")


def show_left_out(reasons: Mapping[str, str]) -> None:
    """Print which of all methods are not run, and why."""
    print_lines([f"left out: {name}. {reason}" for name, reason in reasons.items()], "dim")


def show_unreadable(unreadable: Mapping[Path, str]) -> None:
    """List the images that were left out because they cannot be read."""
    if unreadable:
        note(f"{len(unreadable)} unreadable image(s) left out:")
        print_lines([f"  {path}: {why}" for path, why in unreadable.items()], most=_MOST_FILES)


def show_error(error: AcclimateError) -> None:
    """Print an error for a person: its kind, its code and its message, no traceback."""
    from rich.panel import Panel
    from rich.text import Text

    console = get_console(stderr=True)
    name, message = f"{type(error).__name__} [{error.code}]", printable(str(error))
    if console.is_terminal:
        title = Text(name, style="bold red")
        console.print(Panel(Text(message), title=title, title_align="left", border_style="red"))
    else:  # one line that can be searched for, broken only where the message is
        console.print(f"{name}: {message}", soft_wrap=True)


@contextmanager
def show_warnings() -> Iterator[None]:
    """Print the package's own warnings as notes, each once, without a line of source code."""
    with warnings.catch_warnings():
        usual = warnings.showwarning
        shown: set[str] = set()  # several methods on one stream give the same warnings

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, AcclimateWarning):
                usual(message, category, *where, **more)
            elif (text := str(message)) not in shown:
                shown.add(text)
                note(text)

        warnings.simplefilter("always", AcclimateWarning)
        warnings.showwarning = show
        yield


@contextmanager
def show_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Give a function that takes a stage, the count done and the count to do, and shows a bar.

    Where there is no terminal, each stage is one line when it begins.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeColumn

    console = get_console(stderr=True)
    stages: dict[str, Any] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeColumn())
    is_watched = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not is_watched) as bars:

        def move(stage: str, done: int, total: int | None) -> None:
            if stage not in stages:
                for task in stages.values():
                    bars.update(task, visible=False)
                stages[stage] = bars.add_task(stage, total=total)
                if not is_watched:
                    console.print(f"{stage} …" if total is None else f"{stage} ({total}) …")
            bars.update(stages[stage], completed=done)

        yield move


# Results ------------------------------------------------------------------------------------------


def make_facts(title: str, facts: Mapping[str, str]) -> Table:
    """Return a table of names and values; those without a value are left out."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title, title_justify="left", title_style="bold", show_header=False, box=None
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value:
            table.add_row(Text(name), Text(value))
    return table


def show_facts(title: str, facts: Mapping[str, str]) -> None:
    """Print names and values; those without a value are left out."""
    get_console().print(make_facts(title, facts))


def make_table(columns: Sequence[tuple[str, str]]) -> Table:
    """Return a table without lines.

    Args:
        columns: The heading of each, and how it looks: `bold`, `dim`, `right` or `fold`, which may
            wrap. There is no row of headings if all are empty.
    """
    from rich.table import Table

    is_headed = any(heading for heading, _ in columns)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=is_headed)
    for heading, look in columns:
        style = look if look in ("bold", "dim") else None
        side: Any = "right" if look == "right" else "left"
        table.add_column(
            heading, style=style, justify=side, no_wrap=look != "fold", overflow="fold"
        )
    return table
