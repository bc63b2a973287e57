"""`acclimate zoo`: which source models there are, and how to get their weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli.options import RootOption
from acclimate.cli.terminal import get_console, make_facts, show_progress

if TYPE_CHECKING:
    from acclimate.zoo import ModelSpec

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)


@app.callback()
def zoo() -> None:
    """Show the source models that have a name, and import their weights."""


@app.command("list")
def list_all(data_dir: RootOption = None) -> None:
    """List the models: data, parameters, published clean accuracy, licence, where weights are.

    Example: `acclimate zoo list`

    Every name goes where a model is asked for, as `--model resnet20-cifar10`, once its weights are
    imported. Models of libraries need no import: `timm:NAME`, `torchvision:NAME`.
    """
    from rich.table import Table
    from rich.text import Text

    from acclimate.zoo import get_spec, list_models, weights_path

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("data", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column("licence", no_wrap=True)
    table.add_column("weights from", overflow="fold")
    for name in list_models():
        spec = get_spec(name)
        where = Text(spec.publisher or "not published")
        if weights_path(name, data_dir).is_file():
            where.append(" (here)", style="green")
        accuracy, licence = _percent(spec.accuracy), spec.licence or "–"
        table.add_row(name, spec.data, _count_parameters(spec), accuracy, licence, where)
    console = get_console()
    console.print(table)
    console.print("One of them: acclimate zoo show NAME; its weights: acclimate zoo get NAME")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A model, such as resnet20-cifar10.")],
    data_dir: RootOption = None,
) -> None:
    """Show what is known of one model, with the address of its weights.

    Example: `acclimate zoo show wrn40-2-cifar10`

    An architecture alone, such as `resnet20`, stands for the model of CIFAR-10. With weights of
    your own, `--model resnet20 --weights FILE` takes any that fit; with the full name they must be
    the published ones.
    """
    from acclimate.zoo import get_spec, weights_path

    spec = get_spec(name)
    path = weights_path(spec.name, data_dir)
    facts = {
        "": spec.description,
        "data": f"{spec.data}, {spec.n_classes} classes, {spec.input_size}×{spec.input_size}",
        "architecture": spec.architecture,
        "parameters": _count_parameters(spec),
        "input": f"[0, 1]; inside: mean {_channels(spec.mean)}, std {_channels(spec.std)}",
        "clean accuracy": _percent(spec.accuracy),
        "weights from": spec.publisher or "not published",
        "address": spec.address,
        "licence": spec.licence,
        "SHA-256": spec.sha256,
        "SHA-256 inside": spec.content_sha256,
        "weights at": str(path) if path.is_file() else "no",
    }
    known = {key: value for key, value in facts.items() if value}
    get_console().print(make_facts(spec.name, known))


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A model, such as resnet20-cifar10.")],
    file: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="The published checkpoint, if it is here already."
        ),
    ] = None,
    check_hash: Annotated[
        bool, typer.Option(help="Refuse a file that is not known to hold these weights.")
    ] = True,
    data_dir: RootOption = None,
) -> None:
    """Download or import published weights, so that the model can be used by its name.

    Examples: `acclimate zoo get resnet20-cifar10`,
    `acclimate zoo get wrn28-10-cifar10 --from natural.pt.tar`

    The file is read without executing anything in it, its SHA-256 is compared with the one that is
    known, and every tensor must fit the architecture.
    """
    from acclimate.storage import read_file
    from acclimate.zoo import download, get_spec, import_checkpoint

    spec = get_spec(name)
    if file is None:
        notes = get_console(stderr=True)
        with show_progress() as progress:
            path = download(
                name,
                check_hash=check_hash,
                root=data_dir,
                progress=progress,
                notify=lambda text: notes.print(f"note: {text}", style="yellow", soft_wrap=True),
            )
    else:
        path = import_checkpoint(name, file, check_hash=check_hash, root=data_dir)
    _, card = read_file(path, "zoo")
    known = check_hash and (spec.sha256 or spec.content_sha256)
    facts = {
        "file": str(path),
        "architecture": spec.architecture,
        "parameters": _count_parameters(spec),
        "source SHA-256": card["source_sha256"],
        "checked": "these are the known weights" if known else "not compared with a known SHA-256",
        "left out": ", ".join(card["left_out"]),
    }
    shown = {key: value for key, value in facts.items() if value}
    get_console().print(make_facts(spec.name, shown))


def _count_parameters(spec: ModelSpec) -> str:
    import torch

    with torch.device("meta"):  # shapes only
        model = spec.build()
    return f"{sum(parameter.numel() for parameter in model.parameters()):,}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def _channels(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)
