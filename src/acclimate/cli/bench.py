"""`acclimate bench`: run suites of jobs, see how far they are, and report on them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.bench_progress import show_events
from acclimate.cli.bench_report import compare, report
from acclimate.cli.options import (
    AddressOption,
    CpusOption,
    DeviceOption,
    EngineOption,
    GpusOption,
    StorageOption,
    get_cluster,
)
from acclimate.cli.terminal import get_console, printable, show_warnings

if TYPE_CHECKING:
    from acclimate.bench import Status, Store
    from acclimate.report import Table

bench_app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)

_STYLES = {"done": "green", "running": "cyan", "failed": "bold red", "interrupted": "yellow"}


@bench_app.callback()
def bench() -> None:
    """Run suites of jobs, and report on them.

    A job is a model, data, a stream, a method and a seed. A suite is a short TOML file of jobs; its
    folder keeps a record of every batch.

    Example: `acclimate bench run suite.toml --out results/suite`
    """


@bench_app.command()
def run(
    suite: Annotated[Path, typer.Argument(metavar="SUITE.toml", help="The jobs.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the suite; default: `bench-` and its name."),
    ] = None,
    engine: EngineOption = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes, which share the cores; 0: this one. Default: one for two cores, or as "
            "many as a cluster has room for."
        ),
    ] = None,
    retries: Annotated[
        int, typer.Option(help="How often a job is tried again if its process is lost.")
    ] = 1,
    artifacts: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of prepared artifacts, to share; default: in --out."
        ),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Batches between checkpoints; default: about 20 seconds.")
    ] = None,
    device: DeviceOption = "auto",
    address: AddressOption = None,
    cpus: CpusOption = None,
    gpus: GpusOption = None,
    storage: StorageOption = None,
) -> None:
    """Run the jobs of a suite that are not done yet.

    Run the same command again to resume after an interruption: jobs that are done are skipped,
    others are resumed from their last checkpoint, with the same records.

    A suite has what all jobs share, and rows of what differs. Lists stand for several jobs:

        title = "TENT and ours"

        [job]
        model = "resnet20-cifar10"
        data = "cifar10c"
        seed = [0, 1, 2]

        [[rows]]
        method = "source"

        [[rows]]
        method = ["tent", "swr_nsp"]
        options = { lr = [1e-4, 1e-3] }

    Example: `acclimate bench run suite.toml --out results/suite --workers 2`
    """
    from acclimate.bench import Store, Suite, run_suite

    place = out if out is not None else Path(f"bench-{suite.stem}")
    with show_warnings():
        asked = Suite.load(suite)
        typed = shlex.join(["acclimate", *sys.argv[1:]])
        try:
            with show_events(Store(place, asked).jobs()) as on_event:
                run_suite(
                    asked,
                    place,
                    engine=engine,
                    n_workers=workers,
                    retries=retries,
                    on_event=on_event,
                    device=device,
                    artifacts=artifacts,
                    checkpoint_every=checkpoint_every,
                    command=typed,
                    **get_cluster(address, cpus, gpus, storage),
                )
        except KeyboardInterrupt:
            get_console(stderr=True).print("Interrupted. Run the same command again to resume.")
            raise
        store = Store(place, asked)
        _show_summary(store)
        if _show_errors(store.statuses(), place):
            raise typer.Exit(1)


@bench_app.command()
def status(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="What `acclimate bench run --out DIR` made.")
    ],
    suite: Annotated[
        str | None,
        typer.Option(metavar="TITLE", help="Of several in the folder; default: the last."),
    ] = None,
) -> None:
    """Show how far the jobs of a suite are, also while they run.

    Example: `acclimate bench status results/suite`
    """
    from acclimate.bench import Store

    store = Store(folder, suite)
    found = store.statuses()
    console = get_console()
    console.print(printable(store.suite.title), style="bold")
    _make_table(found).show(console)
    states = [status.state for status in found]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    console.print(f"{len(found)} jobs: {', '.join(counts)}")
    others = [title for title in store.list_suites() if title != store.suite.title]
    if others:
        text = f"other suites in this folder (--suite TITLE): {'; '.join(others)}"
        console.print(printable(text), style="dim", soft_wrap=True)
    _show_errors(found, folder)


bench_app.command()(report)
bench_app.command()(compare)


def _make_table(statuses: list[Status]) -> Table:
    from acclimate.report.table import Cell, Column, Table, plain

    rows = []
    for one in statuses:
        entry = one.entry
        name = f"{entry.label} · {entry.group}" if entry.group else entry.label
        batches = f"{one.done}/{'?' if one.total is None else one.total}"
        state = Cell(one.state, style=_STYLES.get(one.state, "dim"))
        cells = (printable(name), entry.spec.seed, state, batches, one.folder)
        rows.append(tuple(map(plain, cells)))
    columns = (Column("job", "label"), Column("seed"), Column("state", "words"))
    return Table((*columns, Column("batches"), Column("folder", "words")), tuple(rows))


def _show_summary(store: Store) -> None:
    """Print the tables of what is done, if anything is."""
    from acclimate.report import show_report, summarize

    outcomes = store.outcomes()
    if not outcomes:
        return
    suite = store.suite
    about: dict[str, Any] = {"title": suite.title, "selection": suite.selection}
    about |= {"notes": suite.notes, "entries": suite.entries}
    console = get_console()
    show_report(console, summarize(outcomes, **about))
    console.print(f"records: {store.root / 'jobs'}", style="dim", soft_wrap=True)


def _show_errors(statuses: list[Status], folder: Path) -> bool:
    """Print why jobs failed and what to do; return whether any did."""
    console = get_console(stderr=True)
    failed = [(one, one.error) for one in statuses if one.error is not None]
    for one, error in failed:
        title = f"failed: {one.entry.label}, seed {one.entry.spec.seed} ({one.folder})"
        console.print(printable(title), style="bold red", soft_wrap=True)
        console.print(printable(f"  {error['type']}: {error['message']}"), soft_wrap=True)
        console.print(printable(f"  {error['remedy']}"), style="dim", soft_wrap=True)
    if failed:
        console.print(f"{len(failed)} of {len(statuses)} jobs in {folder} failed", soft_wrap=True)
    return bool(failed)
