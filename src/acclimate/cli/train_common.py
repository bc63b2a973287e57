"""What `acclimate train` does alike for images, for several domains and for every pixel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import typer

from acclimate.cli.options import parse_size
from acclimate.cli.terminal import get_console, show_progress, show_warnings
from acclimate.errors import BadInput

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Call:
    """What every kind of training is told besides its settings.

    Attributes:
        out: Weights to write.
        resume: Go on where an interrupted call stopped.
        force: Overwrite, or start anew.
        device: `auto`, `cpu`, `cuda` or `mps`.
        save_every: Steps between two checkpoints.
        root: Of all data.
    """

    out: Path
    resume: bool
    force: bool
    device: str
    save_every: int
    root: Path | None


def run_training(train: Callable[..., Result], settings: Any, call: Call) -> Result:
    """Train with progress on the terminal, and return what came out.

    Args:
        train: Takes the settings, and the fields of the call by name.
        settings: Of the run.
        call: What else was said.
    """
    here = str(Path.cwd())
    if here not in sys.path:  # for package.module:function
        sys.path.insert(0, here)
    with show_warnings(), show_progress() as progress:
        try:
            return train(settings, **vars(call), progress=progress)
        except KeyboardInterrupt:
            get_console(stderr=True).print(
                "Interrupted. Run the same command again with --resume to continue."
            )
            raise


def find_given(context: typer.Context) -> dict[str, Any]:
    """Return the options that were given on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {
        name: context.params[name]
        for name, source in sources.items()
        if source is not None and source.name != "DEFAULT"
    }


def to_flag(name: str) -> str:
    """Return an option as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def get_side(text: str | None) -> int | None:
    """Return the side of the square that images are cropped to.

    Raises:
        BadInput: It is no number, or two of them.
    """
    side = parse_size(text)
    if isinstance(side, tuple):
        raise BadInput(
            "malformed",
            "Expected --size to be one number, because images are resized to a square, found "
            f"{text}.",
            option="size",
            found=text,
        )
    return side
