"""`acclimate zoo`: which source models there are, and how to get their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from acclimate.cli.build import add_command, make_group
from acclimate.cli.terminal import get_console, make_table, show_facts
from acclimate.commands import sources

if TYPE_CHECKING:
    from acclimate.zoo import ModelSpec

zoo = make_group("zoo", "List source models by name, and import their weights.")


def _show_list(models: Sequence[tuple[ModelSpec, Path]]) -> None:
    from rich.text import Text

    looks = ("bold", "", "right", "right", "", "fold")
    heads = ("name", "data", "parameters", "accuracy", "licence", "weights from")
    table = make_table(list(zip(heads, looks, strict=True)))
    for spec, path in models:
        where = Text(spec.publisher or "not published")
        if path.is_file():
            where.append(" (here)", style="green")
        accuracy, licence = _percent(spec.accuracy), spec.licence or "–"
        table.add_row(spec.name, spec.data, _count_parameters(spec), accuracy, licence, where)
    console = get_console()
    console.print(table)
    console.print("One of them: acclimate zoo show NAME; its weights: acclimate zoo get NAME")


def _show_model(found: tuple[ModelSpec, Path]) -> None:
    spec, path = found
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
    show_facts(spec.name, facts)


def _show_weights(found: tuple[ModelSpec, Mapping[str, str]]) -> None:
    spec, facts = found
    about = {"architecture": spec.architecture, "parameters": _count_parameters(spec)}
    show_facts(spec.name, {"file": "", **about, **facts})


def _count_parameters(spec: ModelSpec) -> str:
    import torch

    with torch.device("meta"):  # shapes only
        model = spec.build()
    return f"{sum(parameter.numel() for parameter in model.parameters()):,}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def _channels(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)


add_command(zoo, "list", sources.zoo_list, _show_list)
add_command(zoo, "show", sources.zoo_show, _show_model)
add_command(zoo, "get", sources.zoo_get, _show_weights)
