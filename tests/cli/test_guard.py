"""The guard on the command line: what --guard and --watch change and show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.jobs import read_suite
from tests.cli.test_cli import run
from tests.cli_models import CLASSES
from tests.images import write_images

MODEL = ("--model", "tests.cli_models:tiny_cnn", "--device", "cpu")
SMALL = "note: This batch has 4 images, fewer than the 16 that BatchNorm statistics need"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "photos"
    return write_images(root, dict.fromkeys(CLASSES, 30))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    images = write_images(root / "images", dict.fromkeys(CLASSES, 16), seed=2)
    run("prepare", images, *MODEL, "--out", root / "tiny.acclimate", "--samples", "12")
    return root / "tiny.acclimate"


@pytest.mark.parametrize(
    ("word", "told"), [("--guard", "under guard"), ("--watch", "watched by a guard")]
)
def test_eval_shows_the_estimate_beside_the_truth(
    photos: Path, artifact: Path, tmp_path: Path, word: str, told: str
) -> None:
    out = tmp_path / "out"
    words = ["eval", *MODEL, "--data", photos, "--artifact", artifact, "--method", "norm,tent"]
    shown = run(*words, "--batch-size", "16", word, "--out", out)
    text = " ".join(shown.stdout.split())
    assert f"every method {told}" in text
    assert "Estimated error: as the guard estimates it" in text
    found = json.loads((out / "result.json").read_text())
    lines = read_suite(out)
    for one in found["runs"]:
        own = [line for line in lines if line["method"] == one["method"]]
        guesses = [
            (line["n"], line["estimate"]["source" if line["by_source"] else "adapted"]["value"])
            for line in own
            if line["estimate"] is not None
        ]
        error = sum(n * (1 - value) for n, value in guesses) / sum(n for n, _ in guesses)
        assert one["estimated_error"] == pytest.approx(error)
        share = sum(line["n"] for line in own if line["by_source"]) / 120
        assert one["by_source"] == pytest.approx(share)
        (printed,) = [line for line in shown.stdout.splitlines() if f" {one['method']} " in line]
        assert f"{100 * error:.1f}" in printed
        assert f" {100 * share:.0f} " in printed
        assert word == "--guard" or share == 0
    assert word in found["provenance"]["command"]
    expected = True if word == "--guard" else "watch"
    assert found["provenance"]["settings"]["guard"] == expected


def test_eval_without_a_guard_shows_no_estimate(photos: Path, tmp_path: Path) -> None:
    words = ["eval", *MODEL, "--data", photos, "--method", "source,norm", "--out", tmp_path / "o"]
    shown = run(*words, "--batch-size", "16")
    assert "estimated" not in shown.stdout
    found = json.loads((tmp_path / "o" / "result.json").read_text())
    assert found["runs"][0]["estimated_error"] is None
    assert "guard" not in found["provenance"]["settings"]


def test_adapt_ends_with_a_report(photos: Path, artifact: Path, tmp_path: Path) -> None:
    words = ["adapt", photos, *MODEL, "--artifact", artifact, "--method", "tent"]
    words += ["--batch-size", "16"]
    plain = run(*words, "--out", tmp_path / "plain.csv").stdout
    watched = run(*words, "--watch", "--out", tmp_path / "watched.csv").stdout
    guarded = run(*words, "--guard", "--out", tmp_path / "guarded.csv").stdout
    assert "estimated accuracy" not in plain
    assert "120 images, 0 answered by the source model; now answering: adapted" in watched
    assert "estimated accuracy: source" in watched
    assert "120 images, " in guarded
    same = [(tmp_path / name).read_text() for name in ("plain.csv", "watched.csv")]
    assert same[0] == same[1]


def test_small_batches_are_told_in_one_line(photos: Path, tmp_path: Path) -> None:
    words = ["adapt", photos, *MODEL, "--method", "tent", "--out", tmp_path / "out.csv"]
    notes = run(*words, "--batch-size", "4").stderr.splitlines()
    assert sum(line.startswith(SMALL) and "guard=True" in line for line in notes) == 1
    assert not any(
        "images, fewer than" in line for line in run(*words, "--force").stderr.splitlines()
    )
    both = ["eval", *MODEL, "--data", photos, "--method", "norm,tent", "--batch-size", "4"]
    notes = run(*both, "--out", tmp_path / "eval").stderr.splitlines()
    assert sum(line.startswith(SMALL) for line in notes) == 1
