"""The command line explains itself, and at once."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from acclimate import commands
from acclimate.cli import complete
from acclimate.cli.main import app
from tests.codes import raises


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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("eval --method te", ["tent"]),
        ("eval --method source,te", ["source,tent"]),
        ("eval --data cifar100", ["cifar100", "cifar100c"]),
        ("eval --corruptions fog,sn", ["fog,snow"]),
        ("eval --stream mar", ["markov"]),
        ("adapt --method tent --set statistics=r", ["statistics=running", "statistics=robust"]),
        ("adapt --method tent --set statistics = r", ["running", "robust"]),  # as bash splits it
        ("adapt --method tent --set statistics =", 6 * [...]),
        ("data get camv", ["camvid"]),
        ("bench report --format h", ["html"]),
        ("reproduce --model any", []),
    ],
)
def test_the_shell_completes_values(
    words: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["acclimate", *words.split()]
    monkeypatch.setenv("COMP_WORDS", "\n".join(given))
    monkeypatch.setenv("COMP_CWORD", str(len(given) - 1))
    monkeypatch.setenv("_ACCLIMATE_COMPLETE", "complete_bash")
    monkeypatch.setattr(complete, "_split_off", [])
    complete.join_words()
    found = CliRunner().invoke(app, prog_name="acclimate").output.split()
    assert len(found) == len(expected)
    assert ... in expected or found == expected


@pytest.mark.parametrize("name", complete.KNOWN)
def test_values_that_are_completed_belong_to_an_option(name: str) -> None:
    *path, option = name.split()
    if path:
        assert option in {parameter.name for parameter in list_options(*path)}
    assert all(isinstance(value, str) for value in complete.list_values(" ".join(path), option))
    assert list(complete.list_values(" ".join(path), option))


def test_eval_shows_common_options_first_and_the_others_under_headings() -> None:
    panels: dict[str | None, list[str]] = {}
    for parameter in list_options("eval"):
        panels.setdefault(getattr(parameter, "rich_help_panel", None), []).append(parameter.name)
    assert list(panels) == [None, "Stream", "Methods", "Model and images", "Run"]
    assert {"model", "data", "method", "guard", "out"} < set(panels[None])
    assert len(panels[None]) <= 20


def test_the_help_of_eval_fits_on_two_screens() -> None:
    text = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["eval", "--help"]).output
    assert len(text.splitlines()) <= 100


def test_help_says_what_is_required_and_what_values_are() -> None:
    text = CliRunner(env={"COLUMNS": "500"}).invoke(app, ["train", "--help"]).output
    assert text.startswith("Usage: acclimate train [OPTIONS]\n")
    lines = {line.split()[0]: line.strip() for line in text.splitlines() if line.startswith("  --")}
    assert lines["--out"].startswith("--out FILE ")
    assert lines["--out"].endswith("Required.")
    assert lines["--lr"].endswith("Default: 0.1 (classification), 0.001 (segmentation).")
    assert lines["--objective,"].endswith("Default: cross_entropy (classification, segmentation).")
    assert "<" not in lines["--help"]
    usage = CliRunner().invoke(app, ["send", "--help"]).output.splitlines()[0]
    assert usage == "Usage: acclimate send [OPTIONS] [FOLDER]"


@pytest.mark.parametrize("name", commands.__all__)
def test_the_command_line_has_the_options_of_the_function(name: str) -> None:
    function = getattr(commands, name)
    path = name.split("_") if name != "evaluate" else ["eval"]
    shown = {parameter.name for parameter in list_options(*path)} - {"help"}
    specs = dataclasses.fields(function.options)
    assert shown == {spec.name for spec in specs}
    assert set(inspect.signature(function).parameters) == shown | set(function.callbacks)
    assert all(spec.metadata["help"] for spec in specs)
    assert "Example" in (function.__doc__ or "")


def list_options(*path: str) -> list[Any]:
    command: Any = typer.main.get_command(app)
    for word in path:
        command = command.commands[word]
    return list(command.params)


def test_functions_take_what_the_command_line_takes(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    found = commands.evaluate(
        model="builtin",
        data="builtin",
        method="source,norm",
        corruptions="fog",
        images=20,
        batch_size=10,
        device="cpu",
        out=folder,
    )
    assert [own.entry.label for own in found.comparison.outcomes] == ["source", "norm"]
    report = commands.bench_report(folder=str(folder), format="md")
    assert "norm" in report.text
    with raises("unknown_option", option="bacth_size"):
        commands.evaluate(model="builtin", data="builtin", bacth_size=3)


def test_a_command_line_says_what_was_asked_for() -> None:
    options = commands.adapt.options(
        images="in", model="builtin", out="out", set={"lr": 0.1}, guard=False, terms="swr,nsp"
    )
    words = "--model builtin --set lr=0.1 --watch --terms swr,nsp in --out out"
    assert options.to_command("adapt") == f"acclimate adapt {words}"
    sized = commands.adapt.options(images="in", model="builtin", out="out", size=(48, 64))
    assert "--size 48x64" in sized.to_command("adapt")
