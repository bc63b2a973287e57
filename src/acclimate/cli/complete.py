"""What a shell completes as the value of an option."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

import typer

from acclimate.options import split_names

#: Values by the name of the option, or by the command and the option where commands differ: texts,
#: or where a collection of them, or a function that lists them, is.
KNOWN: Mapping[str, str | tuple[str, ...]] = {
    "augmentation": ("standard", "none"),
    "builtin": "acclimate.corruptions:CORRUPTIONS",
    "corruptions": "acclimate.corruptions:CORRUPTIONS",
    "data": "acclimate.data:SETS",
    "data check name": "acclimate.data:SETS",
    "data corrupt name": "acclimate.corruptions:CORRUPTIONS",
    "data corrupt what": "acclimate.data:SETS",
    "data get name": "acclimate.data:SETS",
    "demo data": "acclimate.demo:TASKS",
    "demo order": ("shuffled", "sorted"),
    "device": "acclimate.zoo.named:DEVICES",
    "engine": "acclimate.bench:ENGINES",
    "eval order": "acclimate.bench.protocol:ORDERS",
    "eval stream": "acclimate.bench.protocol:STREAMS",
    "export format": "acclimate.export:FORMATS",
    "bench report format": "acclimate.commands.suites:FORMATS",
    "granularity": ("tensor", "module", "channel", "parameter"),
    "method": "acclimate.methods:METHODS",
    "methods": "acclimate.methods:METHODS",
    "methods show name": "acclimate.methods:METHODS",
    "model": "acclimate.zoo:list_models",
    "normalization": ("imagenet", "cifar10", "cifar100"),
    "objective": ("cross_entropy", "augmix", "simclr", "augmix+simclr", "erm", "coral", "isw"),
    "precision": "acclimate.training.settings:PRECISIONS",
    "preset": "acclimate.options:PRESETS",
    "reproduce name": "acclimate.paper:EXPERIMENTS",
    "scale": "acclimate.paper:SCALES",
    "selection": "acclimate.training.domains.selection:DOMAIN_RULES",
    "severity": ("1", "2", "3", "4", "5"),
    "source_data": "acclimate.data:SETS",
    "speed": ("exact", "fast", "fastest"),
    "task": "acclimate.training.settings:TASKS",
    "terms": "acclimate.terms:TERMS",
    "when_behind": ("skip", "refuse"),
    "zoo get name": "acclimate.zoo:list_models",
    "zoo show name": "acclimate.zoo:list_models",
}

# What bash has split off the word that is completed: it ends a word at "=".
_split_off: list[str] = []


def make_completer(name: str, is_list: bool = False) -> Callable[..., list[str]]:
    """Return what lists the values of an option for a shell.

    Args:
        name: Of the option.
        is_list: Whether several values are separated by commas.
    """

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        before, comma, _ = incomplete.rpartition(",") if is_list else ("", "", "")
        start = "".join(_split_off)
        command = context.command_path.partition(" ")[2]
        found = _list_settings(context.params) if name == "set" else list_values(command, name)
        known = [value for value in found if value.startswith(start)]
        return [f"{before}{comma}{value.removeprefix(start)}" for value in known]

    return complete


def list_values(command: str, option: str) -> Iterable[str]:
    """Return the values of an option that are known."""
    known: Any = KNOWN.get(f"{command} {option}", KNOWN.get(option, ()))
    if isinstance(known, str):
        module, _, name = known.partition(":")
        known = getattr(import_module(module), name)
    return tuple(known() if callable(known) else known)


def _list_settings(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the hyper-parameters of the methods that are given, with their values if few."""
    from acclimate.methods import METHODS

    names = [name.partition("+")[0] for name in split_names(given.get("method") or "")]
    kinds = [METHODS[name].config_class for name in names if name in METHODS]
    specs = {spec.name: spec for kind in kinds for spec in dataclasses.fields(kind)}
    for name, spec in specs.items():
        usual = ("true", "false") if isinstance(spec.default, bool) else ("",)
        for value in spec.metadata.get("choices") or usual:
            yield f"{name}={value}"


def join_words() -> None:
    """Undo that bash has split the word that is completed at "=", as in `--set lr=`."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    place = int(os.environ.get("COMP_CWORD", "0"))
    if words[place : place + 1] == ["="]:  # the word begins after it
        words.insert(place + 1, "")
        place += 1
    if place >= 2 and words[place - 1 : place] == ["="] and not words[place - 2].startswith("-"):
        _split_off.append(f"{words[place - 2]}=")
        del words[place - 2 : place]
        os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(place - 2)}
