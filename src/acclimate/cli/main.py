"""The entry point of the `acclimate` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from acclimate import commands
from acclimate._version import __version__
from acclimate.cli import results
from acclimate.cli.bench import bench
from acclimate.cli.build import add_command, make_group
from acclimate.cli.complete import join_words
from acclimate.cli.data import data
from acclimate.cli.inspect import show_file
from acclimate.cli.methods import methods
from acclimate.cli.progress import show_events
from acclimate.cli.terminal import show_error, show_facts, show_progress, tell
from acclimate.cli.zoo import zoo
from acclimate.errors import AcclimateError
from acclimate.process import tune_process

app = make_group("acclimate")
add_command(app, "demo", commands.demo, results.show_demo, notify=tell)
add_command(app, "doctor", commands.doctor, results.show_diagnosis)
add_command(app, "prepare", commands.prepare, results.show_prepared)
add_command(app, "adapt", commands.adapt, results.show_predicted)
add_command(app, "eval", commands.evaluate, results.show_evaluated)
add_command(
    app,
    "serve",
    commands.serve,
    lambda has_started: has_started,
    ready=lambda facts: show_facts("acclimate serve", facts),
)
add_command(app, "send", commands.send, results.show_sent)
add_command(app, "export", commands.export, results.show_exported)
add_command(app, "inspect", commands.inspect, show_file)
add_command(app, "train", commands.train, results.show_trained)
add_command(
    app,
    "reproduce",
    commands.reproduce,
    results.show_experiments,
    resumes=True,
    events=show_events,
    watch=show_progress,
    notify=tell,
    finished=results.show_experiment,
)
for group in (bench, methods, data, zoo):
    app.add_typer(group)


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
    join_words()
    try:
        app()
    except AcclimateError as error:
        show_error(error)
        sys.exit(2)
