"""The public surface: names of modules, commands and options, as they are now.

`tests/api_surface.json` records it. After a decision to change it: `python -m tests.surface`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import typer

from acclimate.cli.main import app
from tests.paths import ROOT

sys.path.append(str(ROOT / "docs"))
from generate import api

RECORD = ROOT / "tests" / "api_surface.json"

#: Modules whose `__all__` is public: those in the API reference.
MODULES = ["acclimate", *api.MODULES.values()]

#: Single names that the documents show, in modules that are otherwise internal.
NAMES = {
    "acclimate.data.loading": ["Preparation"],
    "acclimate.decode": ["decode_image"],
    "acclimate.export": ["export_model"],
    "acclimate.export_step": ["export_step"],
    "acclimate.integrations.huggingface": ["ProcessorCollate", "class_names", "processor_info"],
    "acclimate.integrations.lightning": ["Acclimate"],
    "acclimate.integrations.mlflow": ["log_to_mlflow"],
    "acclimate.integrations.tensorboard": ["log_to_tensorboard"],
    "acclimate.integrations.timm": ["TimmModel", "load_timm"],
    "acclimate.process": ["tune_process"],
    "acclimate.serve.client": ["send"],
    "acclimate.serve.ray": ["Builder", "make_application"],
    "acclimate.testing.models": ["tiny_batches", "tiny_model"],
    "acclimate.zoo.named": ["load_named"],
}


def read_modules() -> dict[str, list[str]]:
    found = {name: sorted(importlib.import_module(name).__all__) for name in MODULES}
    return dict(sorted((found | NAMES).items()))


def read_commands() -> dict[str, list[str]]:
    return dict(sorted(_walk(typer.main.get_command(app), "acclimate")))


def _walk(command: Any, path: str) -> Iterator[tuple[str, list[str]]]:
    arguments = [p.name.upper() for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    flags = {flag for option in options for flag in [*option.opts, *option.secondary_opts]}
    yield path, [*arguments, *sorted(flags)]
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk(inner, f"{path} {name}")


if __name__ == "__main__":
    surface = {"modules": read_modules(), "commands": read_commands()}
    RECORD.write_text(json.dumps(surface, indent=1) + "\n")
