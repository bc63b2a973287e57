"""`acclimate doctor`: what adapting a model would find, change and stumble over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli.models import load_model
from acclimate.cli.options import (
    DeviceOption,
    HeadOption,
    LogitsAtOption,
    MeanOption,
    ModelOption,
    NormalizationOption,
    SizeOption,
    StdOption,
    WeightsOption,
    get_logits_at,
    get_normalization,
    get_size,
    parse_size,
)
from acclimate.cli.terminal import get_console, show_unreadable, show_warnings
from acclimate.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from acclimate.doctor import Diagnosis
    from acclimate.functional.inputs import Normalization

_STYLES = {"ok": ("✓", "green"), "note": ("•", "yellow"), "problem": ("✗", "bold red")}


def doctor(
    model: ModelOption,
    weights: WeightsOption = None,
    images: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Images as they will come, any nesting.")
    ] = None,
    input_shape: Annotated[
        str | None,
        typer.Option(metavar="C,H,W", help="Or the shape of one input: a random batch is made."),
    ] = None,
    artifact: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What acclimate prepare wrote, to check it.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Batch size in use.")] = 200,
    size: SizeOption = None,
    normalization: NormalizationOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    head: HeadOption = None,
    logits_at: LogitsAtOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Look at a model and a batch, and report what would happen; nothing is changed.

    Finds the head, looks at normalisation layers, dropout, frozen parameters, the range of the
    inputs and the batch size, reports what each method would move, whether an artifact fits, and
    whether it allows a guard. Batches that are too small for BatchNorm statistics are a problem.
    The exit code is 1 if there is a problem.

    Example: `acclimate doctor --model my_models:resnet --weights resnet.pt --images photos
    --size 224 --normalization imagenet`
    """
    from acclimate.artifact import Artifact
    from acclimate.doctor import diagnose
    from acclimate.introspect import ModelInfo
    from acclimate.streams.folder import FolderStream

    normal = get_normalization(normalization, mean, std)
    with show_warnings():
        prepared = None if artifact is None else Artifact.load(artifact)
        normal = normal or (prepared.normalization if prepared is not None else None)
        if images is not None:
            is_dense = prepared is not None and prepared.info.is_dense
            brought_to = get_size(parse_size(size), prepared)
            stream = FolderStream(images, brought_to, batch_size, normal, squash=is_dense)
            _, x = next(iter(stream))
            show_unreadable(stream.unreadable)
        elif input_shape is not None:
            x = _random_batch(batch_size, _parse_shape(input_shape), normal)
        elif prepared is not None:
            x = _random_batch(batch_size, tuple(prepared.card["input_shape"]), normal)
        else:
            raise BadInput(
                "missing_option",
                "Expected an input for the model, found none. Pass --images DIR, --input-shape "
                "C,H,W or --artifact.",
                option="images",
            )
        net = load_model(model, weights, device)
        diagnosis = diagnose(
            net,
            x,
            prepared,
            ModelInfo(head=head, logits_at=get_logits_at(logits_at), normalization=normal),
            batch_size,
        )
    _show(diagnosis, is_random=images is None)
    if diagnosis.problems:
        raise typer.Exit(1)


def _parse_shape(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise BadInput(
            "malformed",
            f'Expected --input-shape as C,H,W, such as 3,224,224, found "{text}".',
            option="input_shape",
            found=text,
        )
    return tuple(map(int, parts))


def _random_batch(
    batch_size: int, shape: tuple[int, ...], normalization: Normalization | None
) -> Tensor:
    import torch

    if batch_size < 1:
        raise BadInput(
            "out_of_range",
            f"Expected a batch size of at least 1, found {batch_size}.",
            option="batch_size",
            found=batch_size,
        )
    x = torch.rand(batch_size, *shape, generator=torch.Generator().manual_seed(0))
    return x if normalization is None else normalization.normalize(x)


def _show(diagnosis: Diagnosis, is_random: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    console = get_console()
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in diagnosis.findings:
        mark, style = _STYLES[finding.level]
        text = Text(finding.text)
        if is_random and finding.topic == "input" and finding.level == "ok":
            mark, style = _STYLES["note"]
            text = Text("random numbers: the range of real images was not checked (--images)")
        if finding.remedy:
            text.append(f"\n{finding.remedy}", style="dim")
        table.add_row(Text(mark, style=style), Text(finding.topic), text)
    console.print(table)
    n = len(diagnosis.problems)
    word = "No problem found." if n == 0 else f"{n} problem{'s' if n > 1 else ''} found."
    console.print(f"\n{word}", style="bold red" if n else "bold green")
