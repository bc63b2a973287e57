"""`acclimate reproduce` lists, runs, prints and explains itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from acclimate.cli.main import app
from acclimate.paper import EXPERIMENTS
from tests.codes import raises

RUNNER = CliRunner(env={"COLUMNS": "160"})


def run(*words: str) -> str:
    result = RUNNER.invoke(app, ["reproduce", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_list_has_everything() -> None:
    text = run("--list")
    for name, experiment in EXPERIMENTS.items():
        (line,) = [line for line in text.splitlines() if line.split()[:1] == [name]]
        assert experiment.shows[:20] in line
    assert "smoke, small, full" in text
    assert "table-7" in text
    assert run() == text


def test_published_numbers_alone() -> None:
    text = run("table-6", "--published")
    assert "88.90" in text
    assert "Domain generalization" in text
    assert "The text has no numbers of it." in run("fig-1", "--published")


def test_help_teaches() -> None:
    text = " ".join(run("--help").split())
    assert "Example: acclimate reproduce table-1b --scale small" in text
    for option in ("--scale", "--out", "--seeds", "--weights", "--workers", "--engine", "--images"):
        assert option in text


def test_every_option_has_a_line_of_help() -> None:
    for parameter in typer.main.get_command(app).commands["reproduce"].params:
        if parameter.name != "help":
            assert getattr(parameter, "help", None), parameter.name


@pytest.mark.slow
def test_a_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = run("table-11", "--scale", "smoke", "--out", str(out), "--seeds", "2")
    assert "table-s5, smoke: Anchor of the regulariser" in text
    assert "published" in text
    assert "difference" in text
    assert "updating θ* is better than freezing it" in text
    assert "holds (" in text or "cannot be told" in text or "does not hold" in text
    assert "In the paper's numbers".lower() in " ".join(text.split()).lower()
    assert (out / "table.html").is_file()
    result = json.loads((out / "result.json").read_text())
    assert {job["spec"].get("seed", 0) for job in result["jobs"]} == {0, 1}
    assert result["command"] == f"acclimate reproduce table-11 --out {out} --seeds 2"
    assert (out / "table.tex").is_file()
    assert (out / "jobs").is_dir()


@pytest.mark.parametrize(
    ("words", "code", "data"),
    [
        (["tabel-2"], "unknown_name", {"kind": "experiment", "name": "tabel-2"}),
        (["table-2", "--seeds", "0"], "out_of_range", {"option": "seeds", "found": 0}),
        (["table-1b", "--row", "TENTS"], "unknown_name", {"kind": "row", "name": "TENTS"}),
        (
            ["table-2", "--weights", "resnet32-cifar100"],
            "malformed",
            {"option": "weights", "found": "resnet32-cifar100"},
        ),
        (
            ["table-2", "--weights", "resnet32-cifar100=/nowhere/x"],
            "not_found",
            {"path": Path("/nowhere/x")},
        ),
        (["table-2", "--scale", "huge"], "unknown_name", {"kind": "scale", "name": "huge"}),
        (
            ["table-2", "--corruptions", "rain"],
            "unknown_name",
            {"kind": "corruption", "name": "rain"},
        ),
    ],
)
def test_mistakes_are_refused(
    words: list[str], code: str, data: dict[str, Any], tmp_path: Path
) -> None:
    with raises(code, **data):
        RUNNER.invoke(
            app, ["reproduce", *words, "--out", str(tmp_path / "out")], catch_exceptions=False
        )
    assert not (tmp_path / "out").exists()
