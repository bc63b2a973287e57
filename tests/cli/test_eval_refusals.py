"""What `acclimate eval` leaves out and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import acclimate
from tests.cli.test_cli import run
from tests.codes import raises
from tests.data.test_loading import make_folder

MODEL = ("--model", "tests.cli_models:tiny_cnn", "--device", "cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "photos"
    for name in ("dawn", "dusk"):
        make_folder(root / name)
    return root


def test_all_methods_are_those_that_can_run(photos, tmp_path):
    words = ["eval", *MODEL, "--data", photos / "dusk", "--source-data", photos / "dawn"]
    result = run(*words, "--images", "4", "--method", "all", "--out", tmp_path / "out")
    assert "left out: ttt_pp. " in result.stderr
    assert "left out: note. " in result.stderr
    rows = json.loads((tmp_path / "out" / "result.json").read_text())["runs"]
    expected = set(acclimate.list_methods()) - {"ttt_pp", "note", "supervised"}
    assert {row["method"] for row in rows} == expected


def test_mistakes_on_the_command_line(photos, tmp_path):
    out = tmp_path / "out"
    common = ["eval", *MODEL, "--out", out, "--method", "norm", "--data", photos]
    with raises("no_clean_images", name="photos"):
        run(*common, "--clean-probe")
    for option, value in (("source_data", photos), ("source_images", "5")):
        with raises("conflicting_options", options=("artifact", option)):
            words = [f"--{option.replace('_', '-')}", value]
            run(*common, "--artifact", tmp_path / "any.acclimate", *words)
    with raises("method_refused", methods=lambda methods: "tent" in methods):
        run(*common, "--method", "tent", "--model", "tests.cli_models:plain_mlp")
    assert not out.exists()


def test_terms_are_compared_on_one_line(photos: Path, tmp_path: Path) -> None:
    words = ["eval", *MODEL, "--data", photos, "--source-data", photos / "dawn", "--out"]
    result = run(*words, tmp_path / "a", "--method", "source,tent,tent+swr", "--seeds", "2")
    assert "\n tent + SWR " in result.stdout
    settings = json.loads((tmp_path / "a" / "result.json").read_text())["provenance"]["settings"]
    assert settings["methods"]["tent + SWR"]["swr"]["strength"] > 0
    assert "swr" not in settings["methods"]["tent"]
    result = run(*words, tmp_path / "b", "--method", "source,tent", "--terms", "swr")
    assert "\n tent + SWR " in result.stdout
    assert "\n source " in result.stdout
    report = run("bench", "report", tmp_path / "a", "--format", "md")
    assert "tent + SWR" in report.stdout
