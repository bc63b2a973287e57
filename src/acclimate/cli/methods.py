"""`acclimate methods`: which methods there are, and what one of them does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from acclimate.cli.build import make_group
from acclimate.cli.complete import make_completer
from acclimate.cli.help import Command
from acclimate.cli.terminal import get_console, make_table, show_facts

methods = make_group("methods")


@methods.callback(invoke_without_command=True, no_args_is_help=False)
def list_all(context: typer.Context) -> None:
    """List the methods; **methods show NAME** explains one of them.

    Example: `acclimate methods show swr_nsp`
    """
    if context.invoked_subcommand is not None:
        return
    from rich.text import Text

    from acclimate.methods import METHODS

    table = make_table([("", "bold"), ("", "dim"), ("", "fold")])
    for name, kind in METHODS.items():
        text = Text((kind.__doc__ or "").strip().splitlines()[0])
        for mark, holds in (
            ("oracle", kind.card.is_oracle),
            ("reconstruction", kind.card.reconstruction),
        ):
            if holds:
                text.append(f" [{mark}]", style="yellow")
        needs = f"needs {' and '.join(kind.needed_parts())}" if kind.needs else "needs no artifact"
        paper = kind.card.paper.removeprefix("https://").removeprefix("arxiv.org/abs/")
        moves = f"moves {kind.card.moves}"
        pixels = "also on pixels" if kind.card.dense else ""
        details = (moves, needs, kind.card.cost, pixels, f"paper {paper}" if paper else "")
        text.append("\n" + " · ".join(part for part in details if part), style="dim")
        table.add_row(name, str(kind.card.year or ""), text)
    console = get_console()
    console.print(table)
    console.print(
        "\n[oracle] learns from labels: an upper bound. [reconstruction] its authors left details "
        "open, which were decided here.\nSWR and NSP can be added to every method with backward "
        "passes: --terms swr,nsp.\nMore about a method: acclimate methods show NAME",
        style="dim",
    )


@methods.command(cls=Command)
def show(
    name: Annotated[
        str,
        typer.Argument(
            help="A method, such as swr_nsp.", metavar="NAME", autocompletion=make_completer("name")
        ),
    ],
) -> None:
    """Explain one method: what it does, its paper, its hyper-parameters.

    Example: `acclimate methods show tent`

    Hyper-parameters are set with **acclimate adapt --set NAME=VALUE**.
    """
    import dataclasses
    import inspect

    from rich.text import Text

    from acclimate.methods import get_method
    from acclimate.report.table import Column, Table, plain

    kind = get_method(name)
    console = get_console()
    console.print(Text(name, style="bold"))
    console.print(inspect.cleandoc(kind.__doc__ or ""), soft_wrap=True)
    console.print()
    facts = {
        "needs": ", ".join(kind.needed_parts()),
        "pixels": "adapts models that predict every pixel" if kind.card.dense else "",
        "presets": "; ".join(
            f"{preset}: {_values(values)}" for preset, values in kind.config_class.presets.items()
        ),
        "labels": "learned from, if an evaluation reveals them" if kind.card.is_oracle else "",
    }
    show_facts("", facts)
    columns = (
        *(Column("hyper-parameter", "label"), Column("default", "words")),
        *(Column("try", "words"), Column("meaning", "words")),
    )
    rows = []
    for spec in dataclasses.fields(kind.config_class):
        choices = ", ".join(map(str, spec.metadata.get("choices") or ()))
        meaning = f"{spec.metadata['help']}{f' [{choices}]' if choices else ''}"
        cells = (spec.name, _value(spec.default), _search(spec.metadata["search"]), meaning)
        rows.append(tuple(map(plain, cells)))
    Table(columns, tuple(rows)).show(console)


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_value(value)}" for key, value in values.items()) or "the defaults"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _search(search: Any) -> str:
    if search is None:
        return "–"
    if hasattr(search, "values"):
        return ", ".join(map(_value, search.values))
    scale = " (log)" if type(search).__name__ == "LogUniform" else ""
    return f"{_value(search.low)} … {_value(search.high)}{scale}"
