"""Commands of the terminal, made from the options of the functions that they call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from acclimate.cli.complete import make_completer
from acclimate.cli.help import Command as Helped
from acclimate.cli.help import Group
from acclimate.cli.terminal import get_console, note, show_progress, show_warnings
from acclimate.commands.base import MODEL, RUN, Command
from acclimate.options import get_flags

# What values of a type are called in the help.
_METAVARS: dict[type, str] = {bool: "", int: "N", float: "X", Path: "FILE"}

# Headings that come first, and last; others are between them, in the order of the options.
_FIRST, _LAST = (None, "Stream"), (MODEL, RUN)


def add_command(
    app: typer.Typer,
    name: str,
    function: Command[Any],
    show: Callable[[Any], bool | None] = lambda result: None,
    *,
    resumes: bool = False,
    **callbacks: Callable[..., Any],
) -> None:
    """Add a command that calls a function with the options given, and shows what it returns.

    Args:
        app: Where to.
        name: Of the command.
        function: Its options become those of the command, its docstring the help.
        show: Prints the result; the exit code is 1 if it returns False.
        resumes: Whether the same command continues after an interruption, without `--resume`.
        **callbacks: Further keywords of the function.
    """

    def run(context: typer.Context, **given: Any) -> None:
        values = {key: value for key, value in given.items() if _is_given(context, key)}
        with show_warnings(), _explain_interrupts(function, resumes), show_progress() as progress:
            known = {"progress": progress, "notify": note, **callbacks}
            calls = {key: call for key, call in known.items() if key in function.callbacks}
            result = function(**values, **calls)
        if show(result) is False:
            raise typer.Exit(1)

    parameters = [_make_parameter(spec, hint) for spec, hint in _sort(function)]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    run.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (context, *parameters)}
    run.__doc__ = function.__doc__
    app.command(name, cls=Helped)(run)


def make_group(name: str, text: str | None = None) -> typer.Typer:
    """Return a group of commands with this help."""
    shown: dict[str, Any] = {} if text is None else {"help": text}
    return typer.Typer(
        name=name, cls=Group, no_args_is_help=True, pretty_exceptions_enable=False, **shown
    )


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


@contextmanager
def _explain_interrupts(function: Command[Any], resumes: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        has_flag = "resume" in function.options.__dataclass_fields__
        if has_flag or resumes:
            how = "again with --resume to continue" if has_flag else "again to resume"
            get_console(stderr=True).print(f"Interrupted. Run the same command {how}.")
        raise


def _sort(function: Command[Any]) -> list[tuple[Field[Any], Any]]:
    """Return the options with their types: those that are required first, headings in order."""
    hints = get_type_hints(function.options)
    specs = fields(function.options)
    panels = list(dict.fromkeys([*_FIRST, *(spec.metadata.get("panel") for spec in specs)]))
    panels = [*(panel for panel in panels if panel not in _LAST), *_LAST]
    specs = tuple(sorted(specs, key=lambda spec: spec.default is not MISSING))
    return [
        (spec, hints[spec.name])
        for spec in sorted(specs, key=lambda spec: panels.index(spec.metadata.get("panel")))
    ]


def _make_parameter(spec: Field[Any], hint: Any) -> inspect.Parameter:
    """Return the parameter of typer for an option."""
    meta, default = spec.metadata, spec.default
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] or [hint]
    is_plain = len(kinds) == 1 and kinds[0] in (bool, int, float, Path) and not meta.get("parse")
    kind: Any = kinds[0] if is_plain else str
    is_list = get_origin(hint) is tuple or any(get_origin(each) is tuple for each in kinds)
    if isinstance(default, tuple):
        default = ",".join(map(str, default)) or None
    shown: dict[str, Any] = {
        "help": _describe(meta["help"], default),
        "metavar": meta.get("metavar") or _name_values(spec, kind, is_list),
        "autocompletion": make_completer(spec.name, is_list and not meta.get("repeat")),
        "show_default": False,
    }
    if meta.get("repeat"):
        kind, default = list[kind], None if default is None else [default]
    if default is None:
        kind = kind | None
    elif default is MISSING:
        default = inspect.Parameter.empty
    if meta.get("argument"):
        declared = typer.Argument(**shown)
    else:
        shown |= {"rich_help_panel": meta.get("panel"), "envvar": meta.get("envvar")}
        declared = typer.Option(*get_flags(spec), **shown)
    return inspect.Parameter(
        spec.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, declared],
    )


def _describe(text: str, default: Any) -> str:
    text = text if text.endswith(".") else f"{text[0].upper()}{text[1:]}."
    is_shown = default not in (None, "", MISSING) and not isinstance(default, bool)
    return f"{text} Default: {default}." if is_shown else text


def _name_values(spec: Field[Any], kind: type, is_list: bool) -> str:
    """Return what the help calls the values of an option."""
    if choices := spec.metadata.get("choices"):
        return "|".join(map(str, choices))
    return "NAMES" if is_list else _METAVARS.get(kind, "NAME")
