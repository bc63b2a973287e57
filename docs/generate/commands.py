"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from acclimate import commands as public
from acclimate.cli.main import app

INTRODUCTION = """\
# Command line

This page is generated from the commands. `acclimate COMMAND --help` prints the same in a terminal.
Each command is also a function of `acclimate.commands`, which takes the same options as keywords.
An error is printed with its code, and the exit status is 2: see [Errors](errors.md).
"""


def make_page() -> str:
    """Return the page as Markdown."""
    root = typer.main.get_command(app)
    return "\n".join([INTRODUCTION, *_walk(root, "acclimate", 2)])


def _walk(group: Any, path: str, level: int) -> Iterator[str]:
    for name, command in group.commands.items():
        full = f"{path} {name}"
        yield f"{'#' * min(level, 3)} {full}\n"
        yield from _describe(command, full)
        if hasattr(command, "commands"):
            yield from _walk(command, full, level + 1)


def _describe(command: Any, full: str) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    named = [(str(p.metavar or p.name), p.required) for p in arguments]
    names = [name if is_required else f"[{name}]" for name, is_required in named]
    more = ["COMMAND"] * hasattr(command, "commands")
    usage = " ".join([full, *["[OPTIONS]"] * bool(options), *names, *more])
    yield f"```\n{usage}\n```\n"
    yield inspect.cleandoc(command.help or "").replace("\f", "") + "\n"
    rows = [[f"`{name}`", _clean(p.help)] for name, p in zip(names, arguments, strict=True)]
    if rows:
        yield from _table(["argument", "meaning"], rows)
    rows = [[_flags(p), _default(p), _clean(p.help, p.default)] for p in options]
    if rows:
        yield from _table(["option", "default", "meaning"], rows)
    name = "_".join(full.split()[1:]).replace("eval", "evaluate")
    if name in public.__all__:
        yield f"In Python: `acclimate.commands.{name}`, with the same options.\n"


def _flags(option: Any) -> str:
    flags = " / ".join([*option.opts, *option.secondary_opts])
    metavar = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
    return f"`{flags}{metavar}`"


def _default(option: Any) -> str:
    default = option.default
    if isinstance(option.show_default, str):
        return option.show_default
    if default is None or default is False or default in ((), [], "") or callable(default):
        return "–"
    if default is True:
        return "on"
    if isinstance(default, (list, tuple)):
        return f"`{' '.join(map(str, default))}`"
    return f"`{getattr(default, 'value', default)}`"


def _clean(text: str | None, default: Any = None) -> str:
    text = (text or "").removesuffix(f" Default: {default}.")  # it has a column of its own
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    for cells in [head, ["---"] * len(head), *rows]:
        yield "| " + " | ".join(cells) + " |"
    yield ""
