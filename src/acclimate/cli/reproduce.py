"""`acclimate reproduce`: run a table or figure of the paper again."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.bench_progress import show_events
from acclimate.cli.options import (
    AddressOption,
    CpusOption,
    DeviceOption,
    EngineOption,
    GpusOption,
    StorageOption,
    get_cluster,
    split_names,
)
from acclimate.cli.terminal import get_console, printable, show_progress, show_warnings
from acclimate.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from acclimate.paper import Experiment, PaperTable, Reproduction, Settings


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A table or figure, such as table-1b; see --list."),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--list", help="List all tables and figures, and run none.")
    ] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Show the published numbers, and run nothing.")
    ] = False,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke: seconds, on a toy task. small: real images on two cores, with smaller "
            "models and a stated subset. full: the paper's own setting."
        ),
    ] = "smoke",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Table, figure and records; default: `reproduce-ID-SCALE`."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="How many; default: 3 on the subset of small and for table-6 in full, else 1."
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=FILE", help="Weights of a model; may be repeated."),
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="Of each corruption, instead of those of the scale.")
    ] = None,
    corruptions: Annotated[
        str | None,
        typer.Option(help="Separated by commas, instead of those of the scale."),
    ] = None,
    only: Annotated[
        str, typer.Option(metavar="TEXT", help="Only settings with this in their name.")
    ] = "",
    row: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="Run this row of the table only; may be repeated."),
    ] = None,
    engine: EngineOption = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes, which share the cores; 0: this one. Default: 0 for smoke, else one "
            "for two cores, or as many as a cluster has room for."
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the jobs; default: --out. Give several experiments the same one, and "
            "what they have in common is run once.",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="SETTING=MODEL", help="Another model for a setting; may be repeated."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="DATA=DIR", help="A folder for data, such as imagenetc=DIR."),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATA=DIR", help="Labelled source images for data, such as imagenetc=DIR."
        ),
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=FILE", help="The projection head of a model, for TTT++."),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Draws of training's hyper-parameters, of several domains (table-6); default: 5 "
            "for full, else 1.",
        ),
    ] = None,
    selection: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="How hyper-parameters of table-6 are chosen: leave-one-domain-out (default), "
            "training-domain or oracle.",
        ),
    ] = "",
    device: DeviceOption = "auto",
    address: AddressOption = None,
    cpus: CpusOption = None,
    gpus: GpusOption = None,
    storage: StorageOption = None,
) -> None:
    """Run a table or figure of the paper again, and print ours beside the published numbers.

    Every row is one or more jobs with a record of every batch. Run the same command again to resume
    after an interruption: what is done is not run again. In the end there are published numbers,
    ours and the difference, and for each claim that the paper draws from them whether it holds in
    this run, with its confidence. The folder has table.md, table.tex, table.html, result.json with
    the provenance of every job, and the figure.

    The supplement's tables go by two names: table-s1 is its table 7, fig-s1 its figure 7.

    Example: `acclimate reproduce table-1b --scale small --weights
    resnet20-cifar10=cifar10-resnet20.safetensors --out results/table-1b`
    """
    from acclimate.paper import Settings, find_experiments

    if show_all or name is None:
        _show_list()
        return
    experiments = find_experiments(name)
    if published:
        for experiment in experiments:
            _show_table(get_console(), experiment.tabulate(()))
        return
    if seeds is not None and seeds < 1:
        raise BadInput(
            "out_of_range", f"Expected at least 1 seed, found {seeds}.", option="seeds", found=seeds
        )
    settings = Settings(
        weights=_split_files("weights", weights),
        models=_split("model", model),
        data=_split_files("data", data),
        sources=_split_files("source", source),
        heads=_split_files("head", head),
        corruptions=None if corruptions is None else split_names(corruptions),
        images=images,
        only=only,
        rows=tuple(row or ()),
        trials=trials,
        selection=selection,
    )
    root = out if out is not None else Path(f"reproduce-{name}-{scale}")
    is_one = len(experiments) == 1
    ok = True
    for experiment in experiments:
        ok &= _run(
            experiment,
            scale,
            root if is_one else root / experiment.id,
            settings,
            store=store if store is not None else root,
            seeds=None if seeds is None else range(seeds),
            engine=engine,
            n_workers=(0 if scale == "smoke" and engine == "local" else None)
            if workers is None
            else workers,
            device=device,
            **get_cluster(address, cpus, gpus, storage),
        )
    if not ok:
        raise typer.Exit(1)


def _run(
    experiment: Experiment,
    scale: str,
    folder: Path,
    settings: Settings,
    *,
    store: Path,
    seeds: Sequence[int] | None,
    **how: Any,
) -> bool:
    """Run one experiment and print the result; return whether all of its jobs finished."""
    from acclimate.paper import reproduce as run_again

    with show_warnings():
        try:
            found = run_again(
                experiment,
                scale,
                folder,
                seeds=seeds,
                settings=settings,
                store=store,
                show=show_events,
                watch=show_progress,
                notify=_say,
                command=shlex.join(["acclimate", *sys.argv[1:]]),
                **how,
            )
        except KeyboardInterrupt:
            get_console(stderr=True).print("Interrupted. Run the same command again to resume.")
            raise
    _show(found, folder)
    return not found.failed


def _say(text: str) -> None:
    get_console(stderr=True).print(printable(text), soft_wrap=True)


def _show(found: Reproduction, folder: Path) -> None:
    from acclimate.paper import claims_table

    console = get_console()
    _show_table(console, found.table, found.scale)
    if found.verdicts:
        console.print("What the paper draws from it", style="bold")
        claims_table(found.verdicts).show(console)
        console.print()
    names = ", ".join(path.name for path in found.files)
    console.print(f"{folder}: {names}", style="dim", soft_wrap=True)
    for entry in found.failed:
        text = f"failed: {entry.label}, {entry.group}, seed {entry.spec.seed}"
        get_console(stderr=True).print(printable(text), style="bold red", soft_wrap=True)


def _show_list() -> None:
    """Print all experiments: id, number in the supplement, and what they show."""
    from acclimate.paper import EXPERIMENTS, SCALES, WHOLES, list_aliases
    from acclimate.report.table import Column, Table, plain

    rows = [
        tuple(map(plain, (name, ", ".join(list_aliases(name)), experiment.shows)))
        for name, experiment in EXPERIMENTS.items()
    ]
    columns = (Column("id", "label"), Column("also", "label"), Column("what", "words"))
    wholes = "; ".join(f"{name} = {', '.join(parts)}" for name, parts in WHOLES.items())
    notes = (f"several at once: {wholes}", f"each at the scales {', '.join(SCALES)}")
    Table(columns, tuple(rows), notes=notes).show(get_console())


def _show_table(console: Console, table: PaperTable, scale: str = "") -> None:
    """Print published numbers, ours and the difference, setup by setup."""
    at = f", {scale}" if scale else ""
    console.print(f"{table.id}{at}: {table.title}", style="bold")
    console.print(f"{table.place}; {table.unit}", style="dim", soft_wrap=True)
    for setup in table.setups:
        console.print(f"\n{setup}", style="bold")
        table.to_table(setup).show(console)
    if not table.rows:
        console.print("The text has no numbers of it.")
    for note in table.notes:
        console.print(f"note: {note}", style="dim", soft_wrap=not console.is_terminal)
    console.print()


def _split(what: str, pairs: Sequence[str] | None) -> dict[str, str]:
    """Return pairs of a name and a value; a name may have a comma or a space in it."""
    found = {}
    for pair in pairs or ():
        name, sign, value = pair.partition("=")
        if not (name.strip() and sign and value.strip()):
            raise BadInput(
                "malformed",
                f'Expected --{what} NAME=VALUE, found "{pair}".',
                option=what,
                found=pair,
            )
        found[name.strip()] = value.strip()
    return found


def _split_files(what: str, pairs: Sequence[str] | None) -> dict[str, str]:
    found = {}
    for name, value in _split(what, pairs).items():
        path = Path(value).expanduser()
        if not path.exists():
            raise BadInput(
                "not_found",
                f"Expected a file or folder for --{what}, found nothing at {path}.",
                path=path,
            )
        found[name] = str(path)
    return found
