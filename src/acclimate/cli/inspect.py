"""What `acclimate inspect` prints."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.cli.terminal import get_console, show_facts

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from acclimate.commands.files import Inspected

_MANY = 60  # more bars than this are drawn as columns
_EXTREMES = 5
_BAR = 24
_HEIGHT = 6
_PARTIAL = " ▏▎▍▌▋▊▉"
_COLUMN = " ▁▂▃▄▅▆▇█"


def show_file(found: Inspected) -> None:
    """Print the card of an artifact or a saved state, and the penalties of an artifact."""
    console, file, card = get_console(), found.file, found.card
    if found.kind == "state":
        show_facts(f"State {file.name}", _state_facts(file, card))
        return
    show_facts(f"Artifact {file.name}", _artifact_facts(file, card))
    for name, options in card["parts"].items():
        console.print()
        show_facts(f"Part {name}", _part_facts(options))
    weights, cosines = _means(found.tensors, "penalty/"), _means(found.tensors, "cosine/")
    if not weights:
        return
    names, order = _ordered(weights, list(card["model"]["layout"]))
    console.print(f"\nPenalty by parameter tensor, {order}", style="bold")
    if len(names) > _MANY and not found.all:
        _draw_columns(console, names, weights, cosines)
    else:
        _draw_bars(console, names, weights, cosines)


def _artifact_facts(file: Path, card: Mapping[str, Any]) -> dict[str, str]:
    info = card["info"]
    normal = info["normalization"]
    layout = card["model"]["layout"]
    n_values = sum(math.prod(shape) for _, *shape in layout.values())
    return {
        "model": f"{card['model']['weights_sha256'][:12]} ({len(layout)} tensors, "
        f"{n_values:,} values)",
        "head": f"{info['head']}: {info['n_features']} features, {info['n_classes']} classes",
        "input": " × ".join(map(str, card["input_shape"])),
        "normalisation": "none: images in [0, 1]"
        if normal is None
        else f"mean {_text(normal['mean'])}, std {_text(normal['std'])}",
        "seed": str(card["seed"]),
        "versions": ", ".join(f"{name} {number}" for name, number in card["versions"].items()),
        "format": ".".join(map(str, card["format"])),
        "file": _file_size(file),
    }


def _state_facts(file: Path, card: Mapping[str, Any]) -> dict[str, str]:
    counts = card["tree"]["counts"]
    return {
        "method": card["method"],
        "source model": card["source"][:12],
        "artifact": "none" if card["artifact"] is None else card["artifact"][:12],
        "guard": "on" if card["guard"] else "off",
        **{name: _text(value) for name, value in counts.items()},
        "config": _text(card["config"]),
        "format": ".".join(map(str, card["format"])),
        "file": _file_size(file),
    }


def _part_facts(options: dict[str, Any]) -> dict[str, str]:
    shown = {name: _text(value) for name, value in options.items()}
    losses = options.get("loss")
    if isinstance(losses, list):
        shown["loss"] = f"{losses[0]:.4g} in the first epoch, {losses[-1]:.4g} in the last"
    return shown


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, dict) and "name" in value:  # a view: its class and what it is made with
        settings = [_setting(name, part) for name, part in value.items() if name != "name"]
        return f"{value['name']}({', '.join(settings)})"
    if isinstance(value, dict):
        return ", ".join(f"{name}={_text(part)}" for name, part in value.items()) or "none"
    return str(value)


def _setting(name: str, value: Any) -> str:
    if name == "views":
        return _text(value)
    return f"{name}=({_text(value)})" if isinstance(value, list) else f"{name}={_text(value)}"


def _file_size(file: Path) -> str:
    return f"{file.stat().st_size / 1024:,.0f} KiB"


def _means(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, float]:
    """Return one number a parameter: the mean, if the units are finer than tensors."""
    return {
        key.removeprefix(prefix): float(value.double().nanmean())
        for key, value in tensors.items()
        if key.startswith(prefix)
    }


def _ordered(names: Iterable[str], layout: list[str]) -> tuple[list[str], str]:
    """Return the names in the order of the model, if the card keeps it, and what order it is."""
    if layout != sorted(layout):
        return sorted(names, key=layout.index), "from input to output"

    def natural(name: str) -> list[tuple[int, str]]:  # layer 10 comes after layer 9
        parts = re.split(r"(\d+)", name)
        return [(len(part) if part.isdecimal() else 0, part) for part in parts]

    return sorted(names, key=natural), "by name"


def draw_bar(value: float, width: int) -> str:
    """Return a horizontal bar for a value from 0 to 1, exact to an eighth of a character.

    >>> draw_bar(0.5, 4), draw_bar(1.0, 4), draw_bar(0.0, 4)
    ('██', '████', '')
    """
    eighths = round(max(0.0, min(1.0, value)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_PARTIAL[rest] if rest else "")


def draw_columns(values: Sequence[float], width: int, height: int) -> list[str]:
    """Return the lines of a column chart of values from 0 to 1, neighbours averaged to fit.

    >>> draw_columns([0.0, 0.5, 1.0], 3, 2)
    ['  █', ' ██']
    """
    width = min(width, len(values))
    edges = [len(values) * step // width for step in range(width + 1)]
    pairs = itertools.pairwise(edges)
    means = [sum(values[low:high]) / (high - low) for low, high in pairs]
    eighths = [round(max(0.0, min(1.0, mean)) * height * 8) for mean in means]
    return [
        "".join(_COLUMN[max(0, min(8, level - 8 * row))] for level in eighths)
        for row in reversed(range(height))
    ]


def _draw_bars(
    console: Console, names: Sequence[str], weights: dict[str, float], cosines: dict[str, float]
) -> None:
    from acclimate.report.table import Cell, Column, Table, plain

    rows = []
    for name in names:
        cosine = cosines.get(name, math.nan)
        shown = None if math.isnan(cosine) else f"{cosine:.3f}"
        bar = Cell(draw_bar(weights[name], _BAR).ljust(_BAR), style="cyan")
        rows.append(tuple(map(plain, (name, shown, f"{weights[name]:.3f}", bar))))
    heads = (Column("parameter", "label"), Column("cosine"), Column("penalty"))
    Table((*heads, Column("", "words")), tuple(rows)).show(console)


def _draw_columns(
    console: Console, names: Sequence[str], weights: dict[str, float], cosines: dict[str, float]
) -> None:
    lines = draw_columns([weights[name] for name in names], console.width - 6, _HEIGHT)
    for row, line in enumerate(lines):
        axis = {0: "1.0 ┤", _HEIGHT - 1: "0.0 ┤"}.get(row, "    │")
        console.print(f"{axis}{line}", style="cyan")
    ranked = sorted(names, key=lambda name: -weights[name])
    for title, some in (("Highest", ranked[:_EXTREMES]), ("Lowest", ranked[-_EXTREMES:])):
        console.print(f"\n{title} {_EXTREMES} of {len(names)} (all: --all)", style="bold")
        _draw_bars(console, some, weights, cosines)
