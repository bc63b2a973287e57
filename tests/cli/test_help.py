"""The command line explains itself, and at once."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from acclimate.cli.main import app
from tests.paths import ROOT

MODEL = ("--model", "tests.cli_models:tiny_cnn", "--device", "cpu")


def test_commands_import_nothing_slow_before_they_run() -> None:
    """`acclimate --help` must not wait for torch: cli modules import the library when called."""
    allowed = {"acclimate._version", "acclimate.errors", "acclimate.process", "typer", "__future__"}
    # Options are made from these; they import nothing slow either.
    allowed |= {"acclimate.training.settings"}
    for path in (ROOT / "src" / "acclimate" / "cli").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                standard = name.partition(".")[0] in sys.stdlib_module_names
                own = name.startswith("acclimate.cli.")
                assert standard or own or name in allowed, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    "command", ["prepare", "adapt", "inspect", "doctor", "methods", "send", "serve"]
)
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    text = CliRunner(env={"COLUMNS": "200"}).invoke(app, [command, "--help"]).output
    assert f"Example: acclimate {command}" in " ".join(text.split())


def test_every_option_has_a_line_of_help() -> None:
    group = typer.main.get_command(app)
    for name in ("prepare", "adapt", "inspect", "doctor", "send", "serve"):
        for parameter in group.commands[name].params:  # type: ignore[attr-defined]
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


def test_the_shell_completes_commands_and_options() -> None:
    for words, place, expected in (
        ("acclimate ev", "1", ["eval"]),
        ("acclimate bench st", "2", ["status"]),
        ("acclimate eval --strea", "2", ["--stream"]),
    ):
        asked = {
            "_ACCLIMATE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": place,
        }
        command = [Path(sys.executable).with_name("acclimate")]
        found = subprocess.run(
            command, env={**os.environ, **asked}, capture_output=True, text=True, check=False
        )
        assert found.stdout.split() == expected


def test_eval_shows_common_options_first_and_the_others_under_headings() -> None:
    group = typer.main.get_command(app)
    panels: dict[str | None, list[str]] = {}
    for parameter in group.commands["eval"].params:  # type: ignore[attr-defined]
        panels.setdefault(getattr(parameter, "rich_help_panel", None), []).append(parameter.name)
    assert list(panels) == [None, "Stream", "Methods", "Model and images", "Run"]
    assert {"model", "data", "method", "guard", "out"} < set(panels[None])
    assert len(panels[None]) <= 20
    # Options that several commands share have no heading elsewhere.
    others = group.commands["adapt"].params  # type: ignore[attr-defined]
    assert {getattr(parameter, "rich_help_panel", None) for parameter in others} == {None}
