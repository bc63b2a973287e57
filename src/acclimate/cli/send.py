"""`acclimate send`: play images as a stream to a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli.terminal import get_console, make_facts, show_progress
from acclimate.errors import BadInput

if TYPE_CHECKING:
    from acclimate.serve.client import SendReport

_SHOWN_CLASSES = 10


def send(
    folder: Annotated[
        Path | None, typer.Argument(help="Images, in any nesting; class folders give the error.")
    ] = None,
    to: Annotated[str, typer.Option(metavar="URL", help="The server.")] = "http://127.0.0.1:8000",
    builtin: Annotated[
        str | None,
        typer.Option(
            metavar="CORRUPTION",
            help="Instead of a folder: images of the built-in task under a corruption, or clean.",
        ),
    ] = None,
    stream: Annotated[str, typer.Option(help="Id of the stream.")] = "default",
    clients: Annotated[int, typer.Option(help="Clients that send at the same time.")] = 4,
    batch: Annotated[int, typer.Option(help="Images per request.")] = 1,
    rate: Annotated[
        float | None,
        typer.Option(help="Images per second at most; default: as fast as it answers."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Images at most; default: all, or 3000 of the built-in task.")
    ] = None,
    repeat: Annotated[int, typer.Option(help="How often the folder is played.")] = 1,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Shuffle the folder; default: sorted by path.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the order, and of the corruption.")] = 0,
    severity: Annotated[int, typer.Option(help="Of the corruption, from 1 to 5.")] = 5,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ACCLIMATE_TOKEN", show_envvar=True, help="Bearer token, if the server has one."
        ),
    ] = None,
) -> None:
    """Play a folder of images as a stream to **acclimate serve**.

    Prints who answered, how fast, and what was predicted. If the folder has class folders, also the
    error over time: labels and file names are compared here, and never sent.

    Example: `acclimate send images/ --to http://127.0.0.1:8000 --stream camera-1`
    """
    from itertools import islice

    from acclimate.serve import client

    expected = "Expected either a folder of images or --builtin with the name of a corruption"
    if folder is None and builtin is None:
        raise BadInput("missing_option", f"{expected}, found neither.", option="folder")
    if folder is not None and builtin is not None:
        raise BadInput(
            "conflicting_options", f"{expected}, found both.", options=("folder", "builtin")
        )
    if limit is not None and limit < 1:
        raise BadInput(
            "out_of_range",
            f"Expected --limit to be at least 1, found {limit}.",
            option="limit",
            found=limit,
        )
    if builtin is not None:
        n = 3000 if limit is None else limit
        images = client.make_builtin(builtin, n, severity=severity, seed=seed)
    elif folder is not None:
        listed = client.read_folder(folder, shuffle=shuffle, seed=seed, repeat=repeat)
        n = len(listed) if limit is None else min(limit, len(listed))
        images = islice(listed, n)
    with show_progress() as progress:
        report = client.send(
            images,
            to,
            stream=stream,
            clients=clients,
            batch=batch,
            rate=rate,
            token=token,
            total=n,
            progress=progress,
        )
    get_console().print(make_facts(f"Stream {stream}", describe_report(report)))
    if report.n_failed:
        raise typer.Exit(1)


def describe_report(report: SendReport) -> dict[str, str]:
    """Return what came back, as names and values."""
    facts = {
        "answered": f"{report.n_answered} images in {report.seconds:.1f} s, "
        f"{report.throughput:.1f} images/s",
        "by the adapted model": str(report.answered_by["adapted"]),
        "by the source model": str(report.answered_by["source"]),
    }
    marks = [(name, report.quantile(q)) for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))]
    shown = [f"{name} {1000 * value:.1f} ms" for name, value in marks if value is not None]
    facts["latency"] = ", ".join(shown) or "none"
    facts["retries"] = str(report.n_retries)
    failures = [f"{n} × {reason}" for reason, n in report.failures.most_common()]
    facts["failed"] = "; ".join(failures) or "0"
    if report.error is not None:
        parts = [f"{100 * error:.1f}" for error in report.error_by_part() if error is not None]
        facts["error"] = f"{100 * report.error:.1f} %; by quarter of the stream: {', '.join(parts)}"
    if report.estimate is not None:
        facts["estimated accuracy"] = ", ".join(
            f"{who} {100 * report.estimate[who]['value']:.1f} %" for who in ("source", "adapted")
        )
    classes = report.predicted.most_common(_SHOWN_CLASSES)
    more = len(report.predicted) - len(classes)
    facts["predicted"] = ", ".join(f"{name} {n}" for name, n in classes) + (
        f", {more} more classes" if more > 0 else ""
    )
    return facts
