"""`acclimate train --task domains`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from acclimate.builtin.domains import STYLES
from acclimate.cli.main import app
from acclimate.errors import AcclimateError, BadInput, InvalidConfig
from acclimate.storage import read_file
from acclimate.training import DomainResult, DomainSettings
from tests.codes import check_coded
from tests.training.domains.samples import make_settings, make_tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "mine")


def run(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(words))


def words_of(settings: DomainSettings) -> list[str]:
    return shlex.split(settings.command)[1:]


@pytest.mark.slow
def test_it_trains_says_what_came_out_and_does_nothing_twice(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    words = [*words_of(make_settings(data=str(tree))), "--out", str(out), "--device", "cpu"]
    result = run(*words)
    assert result.exit_code == 0, result.output
    _, card = read_file(out, "zoo")
    training = card["training"]
    for text in (
        f"{training['step']} of 6",
        f"{training['validation']['farm']:.2f} % (20 % held out)",
        "statistics of the first weights, frozen",
        "acclimate train --task domains",
        "shore",
    ):
        assert text in result.stdout
    assert "train (6) …" in result.stderr
    check_coded(run(*words).exception, "already_exists", path=out)
    assert "nothing was done" in run(*words, "--resume").stdout


def test_first_weights_are_not_written_over(tree: Path, tmp_path: Path) -> None:
    words = [*words_of(make_settings(data=str(tree))), "--force"]
    for name in ("out.safetensors", "out.last.safetensors"):
        first = tmp_path / name
        first.write_bytes(b"precious")
        out = str(tmp_path / "out.safetensors")
        error = run(*words, "--weights", str(first), "--out", out).exception
        check_coded(error, "overwrites_input", path=first, option="weights")
        assert first.read_bytes() == b"precious"


def test_the_command_in_the_card_is_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DomainSettings] = []

    def train(settings: DomainSettings, out: Path, **options: Any) -> DomainResult:
        asked.append(settings)
        check = {"step": 1, "loss": 1.0, "penalty": 0.0, "mean": 50.0}
        return DomainResult(path=out, step=1, validation={"a": 50.0}, checks=(check,), minutes=0.0)

    monkeypatch.setattr("acclimate.training.train", train)
    changed = make_settings(
        pretrained=True,
        test_domain=("farm", "shore"),
        gamma=0.3,
        hparams_seed=2,
        trial_seed=1,
        size=96,
        images=50,
        precision="bf16-mixed",
        devices=2,
        seed=3,
    )
    begun = make_settings(weights="first.pt", lr=None, dropout=None)
    plain = DomainSettings(objective="erm", model="resnet50", data="pacs", test_domain="photo")
    for settings in (changed, begun, plain):
        result = run(*words_of(settings), "--out", "a.safetensors")
        assert result.exit_code == 0, result.output
        assert asked[-1] == settings


@pytest.mark.parametrize(
    ("words", "kind", "code", "about"),
    [
        (["--objective", "erm"], BadInput, "missing_option", {"option": "test_domain"}),
        (["--task", "domains"], BadInput, "missing_option", {"option": "objective"}),
        (["--test-domain", "a"], BadInput, "not_applicable", {"option": "test_domain"}),
        (["--gamma", "2"], BadInput, "not_applicable", {"option": "gamma"}),
        (
            ["--algorithm", "erm", "--test-domain", "a", "--epochs", "3"],
            BadInput,
            "not_applicable",
            {"option": "epochs"},
        ),
        (
            ["--task", "domains", "--objective", "emr", "--test-domain", "a"],
            InvalidConfig,
            "invalid_options",
            {"problems": lambda found: set(found) == {"objective"}},
        ),
        (
            ["--objective", "erm", "--test-domain", "plane", "--images", "20"],
            BadInput,
            "unknown_name",
            {"kind": "domain", "name": "plane", "known": tuple(STYLES)},
        ),
    ],
)
def test_mistakes_are_refused(
    words: list[str],
    kind: type[AcclimateError],
    code: str,
    about: dict[str, Any],
    tmp_path: Path,
) -> None:
    start = ["train", "--model", "builtin", "--data", "builtin-domains"]
    result = run(*start, "--out", str(tmp_path / "a.safetensors"), *words)
    assert isinstance(result.exception, kind)
    check_coded(result.exception, code, **about)


def test_help_teaches() -> None:
    text = " ".join(run("train", "--help").output.split())
    assert "Several domains (with --task domains)" in text
    assert "Example: acclimate train --task domains --objective coral --model resnet50" in text
