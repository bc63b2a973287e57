"""The text of `--help`: what a command does, then its options under headings.

Options are in two columns, which are as wide as the longest option needs, under all headings.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

from acclimate.cli.terminal import get_console

if TYPE_CHECKING:
    from rich.text import Text

Row = tuple[str, str]


class Command(TyperCommand):
    """A command with this help."""

    def format_help(self, context: Any, formatter: Any) -> None:
        _show_help(self, context)


class Group(TyperGroup):
    """A group of commands with this help."""

    def format_help(self, context: Any, formatter: Any) -> None:
        _show_help(self, context)


def _show_help(command: Any, context: Any) -> None:
    from rich.markdown import Markdown
    from rich.padding import Padding
    from rich.table import Table

    panels: dict[str, list[Row]] = {"Arguments": [], "Commands": [], "Options": []}
    words = ["[OPTIONS]"]
    for each in command.get_params(context):
        if each.param_type_name == "argument":
            name = each.metavar or each.name.upper()
            words.append(name if each.required else f"[{name}]")
            panels["Arguments"].append((name, each.help))
        else:
            rows = panels.setdefault(getattr(each, "rich_help_panel", None) or "Options", [])
            rows.append((_name_option(each), _describe(each)))
    if isinstance(command, Group):
        words.append("[COMMAND]" if command.invoke_without_command else "COMMAND")
        panels["Commands"] = list(_list_commands(command))
    console = get_console()
    console.print(f"Usage: {context.command_path} {' '.join(words)}\n", style="bold")
    console.print(Markdown(inspect.cleandoc(command.help or "")))
    width = max(len(name) for rows in panels.values() for name, _ in rows)
    for title, rows in panels.items():
        if not rows:
            continue
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="cyan", no_wrap=True, min_width=width)
        table.add_column(overflow="fold")
        for name, text in rows:
            table.add_row(name, _style_code(text))
        console.print(f"\n{title}", style="bold")
        console.print(Padding(table, (0, 0, 0, 2)))


def _name_option(option: Any) -> str:
    """Return how an option is written, such as `--method, --methods NAMES`."""
    flags = "/".join((", ".join(option.opts), *option.secondary_opts))
    metavar = "" if option.is_flag else option.metavar
    return f"{flags} {metavar}" if metavar else flags


def _describe(option: Any) -> str:
    variable = f" The variable {option.envvar} sets it, too." if option.envvar else ""
    return f"{option.help}{variable}{' Required.' if option.required else ''}"


def _list_commands(group: Group) -> Iterator[Row]:
    for name, command in group.commands.items():
        paragraph = inspect.cleandoc(command.help or "").partition("\n\n")[0]
        yield name, " ".join(paragraph.replace("**", "`").split())


def _style_code(text: str) -> Text:
    """Return a text in which what is between backticks stands out."""
    from rich.text import Text

    parts = text.split("`")
    return Text.assemble(*((part, "bold" * (i % 2)) for i, part in enumerate(parts)))
