"""`acclimate data`: which sets there are, getting, checking and corrupting them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli.terminal import (
    get_console,
    make_facts,
    printable,
    show_progress,
    show_unreadable,
    show_warnings,
)
from acclimate.errors import BadInput

if TYPE_CHECKING:
    from acclimate.data.catalog import DataSet

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)

_SHOWN = 10

RootOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Where all data is kept; default: `ACCLIMATE_DATA`, or the user's cache folder.",
    ),
]


@app.callback()
def data() -> None:
    """List, get, check and corrupt data sets.

    Example: `acclimate data get cifar10`
    """


@app.command("list")
def list_all(data_dir: RootOption = None) -> None:
    """List the sets, and what of them is on disk.

    Example: `acclimate data list`
    """
    from rich.table import Table
    from rich.text import Text

    from acclimate.data import SETS, WEIGHTS, data_root, find_state

    root = data_root(data_dir)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("set", style="bold", no_wrap=True)
    table.add_column("on disk", overflow="fold")
    table.add_column("what", overflow="fold", ratio=1)
    for name, entry in SETS.items():
        text = Text(entry.text)
        details = [part for part in (_size(entry), f"licence: {entry.licence}") if part]
        text.append("\n" + " · ".join(details), style="dim")
        table.add_row(name, find_state(name, root) or "–", text)
    weights = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    weights.add_column("weights (RobustBench)", style="bold", no_wrap=True)
    weights.add_column("on disk")
    for name in WEIGHTS:
        weights.add_row(name, find_state(name, root) or "–")
    console = get_console()
    console.print(table)
    console.print()
    console.print(weights)
    console.print(f"\nData is kept in {root}", style="dim", soft_wrap=True)


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A set, such as cifar10; `data list` names them.")],
    data_dir: RootOption = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE_OR_DIR",
            help="Take the published archive, or the folder it unpacks to, from here instead of "
            "the internet.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Get it even if it is there.")] = False,
) -> None:
    """Get a set: download it, check it, put it in place.

    Mirrors are tried in turn. A download that was cut goes on where it was.

    Example: `acclimate data get cifar100 --from ~/downloads/cifar-100-binary.tar.gz`
    """
    from acclimate.data import data_root, find_state
    from acclimate.data import get as get_set

    root = data_root(data_dir)
    with show_warnings(), show_progress() as progress:
        place = get_set(name, root, source, force, progress, _note)
    facts = {"place": str(place), "source": find_state(name, root)}
    get_console().print(make_facts(name, facts))


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="A set, such as cifar10; `data list` names them.")],
    data_dir: RootOption = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Where a set of image files is."),
    ] = None,
) -> None:
    """Look at every file of a set on disk, and report what is wrong; exit code 1 if anything is.

    Example: `acclimate data check image-folder --dir photos`
    """
    from acclimate.data.check import check as check_set

    with show_warnings(), show_progress() as progress:
        report = check_set(name, data_dir, folder, progress)
    console = get_console()
    console.print(make_facts(name, report.facts))
    if not report.problems:
        console.print("Nothing is wrong.", style="green")
        return
    console.print(f"{len(report.problems)} problem(s):", style="bold red")
    for problem in report.problems[:_SHOWN]:
        console.print(printable(f"  {problem}"), soft_wrap=True)
    if len(report.problems) > _SHOWN:
        console.print(f"  (+ {len(report.problems) - _SHOWN} more)")
    raise typer.Exit(1)


@app.command()
def corrupt(
    what: Annotated[
        str,
        typer.Argument(
            metavar="SET_OR_DIR", help="cifar10, cifar100 or imagenet; or a folder of images."
        ),
    ],
    name: Annotated[
        list[str] | None,
        typer.Option(help="A corruption, such as fog; may be repeated; default: all."),
    ] = None,
    severity: Annotated[
        list[int] | None,
        typer.Option(help="From 1 to 5; may be repeated; default: 5."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to; needed for a folder of images."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(help="Bring image files to this shorter side and crop the centre first."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all random draws.")] = 0,
    workers: Annotated[
        int | None, typer.Option(help="Processes; default: one for each processor.")
    ] = None,
    data_dir: RootOption = None,
) -> None:
    """Make corrupted copies of a set or of a folder of images.

    A set of arrays gets the layout of CIFAR-10-C, a folder that of ImageNet-C. What is there
    already is kept: a run that was cut goes on with the same command.

    Example: `acclimate data corrupt cifar10 --severity 5 --name fog`
    """
    from acclimate.data import SETS, data_root
    from acclimate.data import corrupt as corrupt_set
    from acclimate.data.corruptor import list_corruptions

    root = data_root(data_dir)
    names, severities = name or list_corruptions(), severity or [5]
    n_workers = workers if workers is not None else os.cpu_count() or 1
    if what in SETS and SETS[what].kind != "folder":
        if size is not None:
            raise BadInput(f"--size is for folders of images; {what} is corrupted as it is.")
        with show_warnings(), show_progress() as progress:
            place = corrupt_set(
                what, names, severities, root, out, seed, n_workers, progress, _note
            )
        get_console().print(make_facts(what, {"place": str(place), "source": "generated"}))
        return
    source = _find_source(what, root)
    target = out if out is not None or what != "imagenet" else root / "imagenetc-generated"
    if target is None:
        raise BadInput("give the folder to write the copies to by --out.")
    from acclimate.data.folder_copies import corrupt_folder

    with show_warnings(), show_progress() as progress:
        counts = corrupt_folder(
            source, target, names, severities, seed, size, n_workers, progress, _note
        )
    show_unreadable(counts.unreadable)
    facts = {
        "place": str(target),
        "written": f"{counts.n_written:,}",
        "there already": f"{counts.n_present:,}",
        "unreadable": f"{len(counts.unreadable):,}",
    }
    get_console().print(make_facts(what, facts))


def _find_source(what: str, root: Path) -> Path:
    if what == "imagenet":
        from acclimate.data.catalog import get_set
        from acclimate.data.folders import find_folder

        return find_folder(get_set("imagenet"), root)
    if not Path(what).is_dir():
        raise BadInput(f"{what} is neither a set that can be corrupted nor a folder of images.")
    return Path(what)


def _note(text: str) -> None:
    get_console(stderr=True).print(f"note: {printable(text)}", style="yellow", soft_wrap=True)


def _size(entry: DataSet) -> str:
    total = sum(file.size or 0 for file in entry.files)
    if not total:
        return ""
    return f"{total / 1e9:.1f} GB" if total >= 1e9 else f"{total / 1e6:.0f} MB"
