"""The entry point of the `acclimate` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from acclimate._version import __version__
from acclimate.cli.adapt import adapt
from acclimate.cli.bench import bench_app as bench
from acclimate.cli.data import app as data
from acclimate.cli.demo import demo
from acclimate.cli.doctor import doctor
from acclimate.cli.eval import evaluate
from acclimate.cli.export import export
from acclimate.cli.inspect import inspect
from acclimate.cli.methods import app as methods
from acclimate.cli.prepare import prepare
from acclimate.cli.reproduce import reproduce
from acclimate.cli.send import send
from acclimate.cli.serve import serve
from acclimate.cli.terminal import show_error
from acclimate.cli.train import train
from acclimate.cli.zoo import app as zoo
from acclimate.errors import AcclimateError
from acclimate.process import tune_process

app = typer.Typer(
    name="acclimate",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(doctor)
app.command()(prepare)
app.command()(adapt)
app.command("eval")(evaluate)
app.command()(serve)
app.command()(export)
app.command()(send)
app.command()(inspect)
app.command()(train)
app.command()(reproduce)
app.add_typer(bench, name="bench")
app.add_typer(methods, name="methods")
app.add_typer(data, name="data")
app.add_typer(zoo, name="zoo")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def acclimate(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Let a trained model adapt itself to the data it meets.

    A model meets data unlike its training data: noise, blur, fog, another camera. acclimate lets
    it adapt online, from the unlabelled stream it serves.

    Start with **acclimate demo**: it needs no data and shows the whole thing in minutes.

    With a model of your own:

    1. **acclimate doctor** looks at the model and a batch and reports what would happen;
    2. **acclimate prepare** runs once, where the source data is, and writes one artifact file;
    3. **acclimate adapt** runs anywhere: it predicts a folder of images and learns as it goes;
    4. **acclimate eval** measures on labelled images how much each method helps.
    """


def main() -> None:
    """Run the command line; a user's mistake is one message and exit code 2."""
    tune_process()
    try:
        app()
    except AcclimateError as error:
        show_error(error)
        sys.exit(2)
