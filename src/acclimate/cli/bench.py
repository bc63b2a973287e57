"""`acclimate bench`: run suites of jobs, see how far they are, and report on them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import typer

from acclimate.cli.build import add_command, make_group
from acclimate.cli.progress import show_events
from acclimate.cli.terminal import get_console, print_lines, printable
from acclimate.commands import suites

if TYPE_CHECKING:
    from acclimate.bench import Store
    from acclimate.commands.suites import Reported

bench = make_group(
    "bench",
    """Run suites of jobs, and report on them.

    A job is a model, data, a stream, a method and a seed. A suite is a short TOML file of jobs; its
    folder keeps a record of every batch.

    Example: `acclimate bench run suite.toml --out results/suite`
    """,
)

_STYLES = {"done": "green", "running": "cyan", "failed": "bold red", "interrupted": "yellow"}


def _show_run(store: Store) -> bool:
    from acclimate.report import make_document

    outcomes, console = store.outcomes(), get_console()
    if outcomes:
        make_document(suites.summarize_store(store, outcomes)).show(console)
        console.print(f"records: {store.root / 'jobs'}", style="dim", soft_wrap=True)
    return not _show_errors(store)


def _show_status(store: Store) -> None:
    from acclimate.report.table import Cell, Column, Table, plain

    rows, statuses = [], store.statuses()
    for one in statuses:
        entry = one.entry
        name = f"{entry.label} · {entry.group}" if entry.group else entry.label
        batches = f"{one.done}/{'?' if one.total is None else one.total}"
        state = Cell(one.state, style=_STYLES.get(one.state, "dim"))
        cells = (printable(name), entry.spec.seed, state, batches, one.folder)
        rows.append(tuple(map(plain, cells)))
    columns = (
        *(Column("job", "label"), Column("seed"), Column("state", "words")),
        *(Column("batches"), Column("folder", "words")),
    )
    console, title = get_console(), store.suite.title
    console.print(printable(title), style="bold")
    Table(columns, tuple(rows)).show(console)
    states = Counter(status.state for status in statuses)
    counts = ", ".join(f"{n} {state}" for state, n in states.items())
    console.print(f"{len(statuses)} jobs: {counts}")
    others = [other for other in store.list_suites() if other != title]
    if others:
        text = f"other suites in this folder (--suite TITLE): {'; '.join(others)}"
        console.print(printable(text), style="dim", soft_wrap=True)
    _show_errors(store)


def _show_errors(store: Store) -> bool:
    """Print why jobs failed and what to do; return whether any did."""
    statuses = store.statuses()
    failed = [(one, one.error) for one in statuses if one.error is not None]
    for one, error in failed:
        title = f"failed: {one.entry.label}, seed {one.entry.spec.seed} ({one.folder})"
        print_lines([title], "bold red")
        print_lines([f"  {error['type']}: {error['message']}"])
        print_lines([f"  {error['remedy']}"], "dim")
    if failed:
        print_lines([f"{len(failed)} of {len(statuses)} jobs in {store.root} failed"])
    return bool(failed)


def _show_report(reported: Reported) -> None:
    from acclimate.report import make_document

    if reported.path is not None:
        get_console().print(f"Report: {reported.path.resolve()}", soft_wrap=True)
    elif reported.format == "terminal":
        make_document(reported.summary).show(get_console())
    else:
        typer.echo(reported.text, nl=False)


def _show_comparison(found: suites.Compared) -> None:
    found.comparison.to_document(found.names).show(get_console())


add_command(bench, "run", suites.bench_run, _show_run, resumes=True, events=show_events)
add_command(bench, "status", suites.bench_status, _show_status)
add_command(bench, "report", suites.bench_report, _show_report)
add_command(bench, "compare", suites.bench_compare, _show_comparison)
