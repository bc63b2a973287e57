"""The entry point of the `acclimate` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from acclimate._version import __version__
from acclimate.cli.adapt import show_predicted
from acclimate.cli.bench import bench
from acclimate.cli.build import add_command
from acclimate.cli.data import data
from acclimate.cli.demo import show_demo, tell
from acclimate.cli.doctor import show_diagnosis
from acclimate.cli.eval import show_evaluated
from acclimate.cli.export import show_exported
from acclimate.cli.inspect import show_file
from acclimate.cli.methods import methods
from acclimate.cli.prepare import show_prepared
from acclimate.cli.progress import show_events
from acclimate.cli.reproduce import show_list, show_one
from acclimate.cli.send import show_sent
from acclimate.cli.terminal import show_error, show_facts, show_progress
from acclimate.cli.train import show_trained
from acclimate.cli.zoo import zoo
from acclimate.commands import files, measure, models, serving, sources, suites
from acclimate.errors import AcclimateError
from acclimate.process import tune_process

app = typer.Typer(
    name="acclimate",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
add_command(app, "demo", suites.demo, show_demo, notify=tell)
add_command(app, "doctor", models.doctor, show_diagnosis)
add_command(app, "prepare", models.prepare, show_prepared)
add_command(app, "adapt", models.adapt, show_predicted)
add_command(app, "eval", measure.evaluate, show_evaluated)
add_command(
    app,
    "serve",
    serving.serve,
    lambda has_started: has_started,
    ready=lambda facts: show_facts("acclimate serve", facts),
)
add_command(app, "export", files.export, show_exported)
add_command(app, "send", serving.send, show_sent)
add_command(app, "inspect", files.inspect, show_file)
add_command(app, "train", sources.train, show_trained)
add_command(
    app,
    "reproduce",
    suites.reproduce,
    show_list,
    resumes=True,
    events=show_events,
    watch=show_progress,
    notify=tell,
    finished=show_one,
)
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
    """Test-time adaptation: a trained model adapts online, from the unlabelled images it predicts.

    Deployed models receive images that differ from their training images: noise, blur, fog,
    another camera. acclimate adapts them online, without labels and without source data.

    Start with **acclimate demo**: it needs no data, and shows what adaptation does in minutes.

    With a model of your own:

    1. **acclimate doctor** checks the model and a batch, and reports what would happen;
    2. **acclimate prepare** runs once, where the source data is, and writes one file, the artifact;
    3. **acclimate adapt** runs anywhere: it predicts a folder of images and learns as it goes;
    4. **acclimate eval** measures on labelled images how much each method helps.

    Each command is also a function in Python: see `acclimate.commands`.
    """


def main() -> None:
    """Run the command line; a user's mistake is one message and exit code 2."""
    tune_process()
    try:
        app()
    except AcclimateError as error:
        show_error(error)
        sys.exit(2)
