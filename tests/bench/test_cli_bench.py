"""`acclimate bench run` and `bench status`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from acclimate.cli.main import app
from acclimate.errors import BadInput, UnknownMethod
from tests.codes import raises

SUITE = """
title = "Two methods"
notes = "a few images"
[job]
model = "tests.bench.models:tiny"
corruptions = ["gaussian_noise", "fog"]
images = 16
protocol = { batch_size = 4 }
[[rows]]
method = "source"
[[rows]]
label = "TENT"
method = "tent"
seed = [0, 1]
"""


def call(*words: object):
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, ["bench", *map(str, words)])


@pytest.fixture
def suite(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite.toml").write_text(SUITE)
    return tmp_path / "suite.toml"


def test_a_suite_is_run_shown_and_not_run_again(suite: Path) -> None:
    first = call("run", suite, "--out", "out", "--workers", "0")
    assert first.exit_code == 0, first.output
    assert "Two methods" in first.stdout
    assert "TENT" in first.stdout
    assert "done: source, seed 0 [1 of 3 jobs" in first.stderr
    written = sorted(Path("out/jobs").glob("*/result.json"))
    assert len(written) == 3
    facts = json.loads(written[0].read_text())["provenance"]
    assert facts["command"] == f"acclimate bench run --workers 0 {suite} --out out"
    before = [path.stat().st_mtime_ns for path in written]
    again = call("run", suite, "--out", "out", "--workers", "0")
    assert again.exit_code == 0
    assert again.stdout == first.stdout
    assert "done:" not in again.stderr
    assert [path.stat().st_mtime_ns for path in written] == before


def test_the_folder_has_a_name_by_default(suite: Path) -> None:
    assert call("run", suite, "--workers", "0").exit_code == 0
    assert Path("bench-suite/suite.json").is_file()


def test_failures_are_shown_at_the_end_with_what_to_do(suite: Path) -> None:
    bad = '\n[[rows]]\nmethod = "norm"\nmodel = "tests.bench.models:nowhere"\n'
    suite.write_text(SUITE + bad)
    result = call("run", suite, "--out", "out", "--workers", "0")
    assert result.exit_code == 1
    assert "TENT" in result.stdout
    assert "failed: norm" in result.stderr
    assert "BadInput: " in result.stderr
    assert "nowhere" in result.stderr
    assert "1 of 4 jobs in out failed" in result.stderr
    shown = call("status", "out")
    assert shown.exit_code == 0
    assert "4 jobs: 3 done, 1 failed" in shown.stdout
    assert "8/8" in shown.stdout
    assert "run the suite again" in shown.stderr


def test_mistakes_are_refused_before_anything_is_made(suite: Path, tmp_path: Path) -> None:
    suite.write_text(SUITE.replace('"tent"', '"tnet"'))
    with raises("unknown_method", UnknownMethod, name="tnet") as caught:
        raise call("run", suite, "--out", "out").exception
    assert "tent" in caught.value.known
    assert not (tmp_path / "out").exists()
    for slip, kind, name, meant in (
        ('model = "resnet20-cifr10"', "model", "resnet20-cifr10", "resnet20-cifar10"),
        ('model = "builtin"\ndata = "cifr10c"', "data set", "cifr10c", "cifar10c"),
    ):
        suite.write_text(SUITE.replace('model = "tests.bench.models:tiny"', slip))
        with raises("unknown_name", BadInput, kind=kind, name=name) as caught:
            raise call("run", suite, "--out", "out", "--workers", "0").exception
        assert meant in caught.value.known
    assert not (tmp_path / "out").exists()
    with raises("not_found", BadInput, path=tmp_path / "suite.json"):
        raise call("status", tmp_path).exception


@pytest.mark.parametrize("command", ["run", "status"])
def test_help_has_an_example(command: str) -> None:
    text = call(command, "--help").output
    assert f"Example: acclimate bench {command}" in " ".join(text.split())
