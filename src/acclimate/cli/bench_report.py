"""`acclimate bench report` and `acclimate bench compare`: what came out of suites."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli.options import check_file
from acclimate.cli.terminal import get_console
from acclimate.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from acclimate.bench.outcome import Outcome
    from acclimate.bench.suite import Store
    from acclimate.report import Summary

#: Names of the formats; the first is the one if none is asked for.
FORMATS = ("terminal", "md", "csv", "latex", "html")

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="What `acclimate bench run --out DIR` wrote.")
]


def report(
    folder: FolderArgument,
    format_: Annotated[
        str, typer.Option("--format", help="terminal, md, csv, latex or html.")
    ] = FORMATS[0],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Where to write it; html: DIR/report.html if not given."
        ),
    ] = None,
) -> None:
    """Show what came out of a suite: errors, cost, a ranking with intervals, and the protocol.

    Only jobs that are done are in it, so it can be asked for at any time. Rows that lack seeds, or
    were measured under another protocol, are marked, and not compared with the others.

    **--format html** writes one page with charts that needs nothing else; **csv** has one line for
    each job and domain, with all digits.

    Example: `acclimate bench report results/suite --format html --out suite.html`
    """
    if format_ not in FORMATS:
        raise BadInput(
            "unknown_name",
            f'Unknown format "{format_}". {did_you_mean(format_, FORMATS)}',
            kind="format",
            name=format_,
            known=tuple(FORMATS),
        )
    from acclimate.bench.suite import Store
    from acclimate.storage import write_atomically

    store = Store(folder)
    place = folder / "report.html" if format_ == "html" and out is None else out
    check_file(place)
    text = _render(_read(store), format_, folder, place)
    if place is not None:
        write_atomically(place, text.encode())
        get_console().print(f"Report: {place.resolve()}", soft_wrap=True)
    elif format_ != "terminal":
        typer.echo(text, nl=False)


def compare(
    first: Annotated[Path, typer.Argument(metavar="DIR_A", help="The folder of a suite.")],
    second: Annotated[Path, typer.Argument(metavar="DIR_B", help="The folder of another.")],
) -> None:
    """Compare what came out of two suites, or of one suite before and after a change.

    For each label that both have: the errors, their difference with a 95 % interval, and whether
    they were measured under the same protocol; then the jobs that only one of them has.

    Example: `acclimate bench compare results/before results/after`
    """
    from acclimate.bench.suite import Store
    from acclimate.report import compare_suites, show_comparison

    found = compare_suites(_read_done(Store(first)), _read_done(Store(second)))
    show_comparison(get_console(), found, (str(first), str(second)))


def _read_done(store: Store) -> Sequence[Outcome]:
    outcomes = store.outcomes()
    if not outcomes:
        raise BadInput(
            "no_finished_job",
            f"{store.root} contains no finished job. See: acclimate bench status {store.root}",
        )
    return outcomes


def _read(store: Store) -> Summary:
    from acclimate.report import summarize

    suite, outcomes = store.suite, _read_done(store)
    return summarize(
        outcomes,
        title=suite.title,
        selection=suite.selection,
        notes=suite.notes,
        entries=suite.entries,
    )


def _render(summary: Summary, format_: str, folder: Path, place: Path | None) -> str:
    from acclimate import report as reports

    if format_ == "html" and place is not None:
        beside = place.resolve().parent
        return reports.render_suite(summary, os.path.relpath(folder.resolve(), beside))
    if format_ == "terminal":
        return _show(summary, place)
    makers = {
        "md": reports.render_markdown,
        "csv": reports.render_csv,
        "latex": reports.render_latex,
    }
    return makers[format_](summary)


def _show(summary: Summary, place: Path | None) -> str:
    """Print the report, or return it if it is for a file."""
    from acclimate.cli.terminal import FILE_WIDTH
    from acclimate.report import show_report

    console = get_console()
    if place is not None:
        console.file, console.width = io.StringIO(), FILE_WIDTH
    show_report(console, summary)
    return console.file.getvalue() if isinstance(console.file, io.StringIO) else ""
