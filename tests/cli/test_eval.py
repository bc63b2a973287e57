"""`acclimate eval` as a user types it, on a small model and a few images of their own."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from acclimate.artifact import Artifact
from acclimate.cli.main import app
from acclimate.errors import InvalidConfig
from acclimate.streams.images import read_image
from tests.bench.jobs import read_suite
from tests.cli.test_cli import run
from tests.cli_models import CLASSES, tiny_cnn
from tests.codes import raises
from tests.demo.predictions import predict_clearly
from tests.images import write_images
from tests.paths import ROOT

MODEL = ("--model", "tests.cli_models:tiny_cnn", "--device", "cpu")
VOLATILE = ("ms", "peak_memory")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "photos"
    for seed, name in enumerate(("dawn", "dusk")):
        write_images(root / name, dict.fromkeys(CLASSES, 5), seed=seed)
    return root


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    out = root / "tiny.acclimate"
    images = write_images(root / "images", dict.fromkeys(CLASSES, 3), seed=2)
    run("prepare", images, *MODEL, "--out", out, "--samples", "12")
    return out


def test_own_model_on_own_images(photos: Path, artifact: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["eval", *MODEL, "--artifact", artifact, "--data", photos, "--out", out]
    result = run(*words, "--batch-size", "6", "--set", "tent.lr=0.05")
    # The source row, by hand.
    wrong = {}
    for domain in ("dawn", "dusk"):
        for number, name in enumerate(CLASSES):
            files = sorted((photos / domain / name).iterdir())
            pixels = np.stack([read_image(path, (8, 8)) for path in files])
            x = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
            n_wrong = int((predict_clearly(tiny_cnn(), x) != number).sum())
            wrong[domain] = wrong.get(domain, 0) + n_wrong
    row = next(line for line in result.stdout.splitlines() if line.strip().startswith("source"))
    shown = row.replace("*", "").split()
    assert shown[1:3] == [f"{100 * wrong[name] / 20:.1f}" for name in ("dawn", "dusk")]
    for method in ("norm", "tent", "swr_nsp", "steady"):
        assert f"\n {method} " in result.stdout
    assert "reset before each domain; 2 domains, 20 samples each; order by seed 0" in result.stdout
    assert str(out / "jobs") in result.stdout
    facts = json.loads((out / "result.json").read_text())["provenance"]
    assert facts["settings"]["methods"]["tent"]["lr"] == 0.05
    assert facts["settings"]["protocol"]["order"] == "shuffled"
    assert facts["settings"]["data"]["classes"] == list(CLASSES)
    assert shlex.split(facts["command"])[:4] == ["acclimate", "eval", "--model", MODEL[1]]
    assert "--set tent.lr=0.05" in facts["command"]
    assert "--seed" not in facts["command"]
    assert len(read_suite(out)) == 5 * 2 * 4


def test_the_default_leaves_out_what_cannot_adapt_the_model(photos: Path, tmp_path: Path) -> None:
    own = tmp_path / "few.acclimate"
    words = ["prepare", photos / "dawn", *MODEL, "--out", own, "--method", "tent"]
    run(*words, "--no-accuracy")
    common = ["eval", *MODEL, "--data", photos / "dusk", "--artifact", own]
    result = run(*common, "--out", tmp_path / "out")
    for method in ("swr_nsp", "steady"):
        assert f"left out: {method}. " in result.stderr
    rows = json.loads((tmp_path / "out" / "result.json").read_text())["runs"]
    assert [row["method"] for row in rows] == ["source", "norm", "tent"]
    with raises("method_refused", methods=("steady",)):  # asked for by name, it is an error
        run(*common, "--out", tmp_path / "named", "--method", "steady")


def test_a_folder_may_be_moved_before_it_goes_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["eval", *MODEL, "--method", "norm", "--out", tmp_path / "out", "--data"]
    result = run(*words, photos)
    moved = shutil.copytree(photos, tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    again = run(*words, moved.name, "--resume")
    assert again.stdout == result.stdout
    (moved / "dawn" / "cat" / "000.png").unlink()
    with raises(
        "other_settings", differences=lambda found: found["data.domains.dawn.n"] == (20, 19)
    ):
        run(*words, moved, "--resume")


def test_one_domain_shows_likelihood_and_calibration_too(photos: Path, tmp_path: Path) -> None:
    words = ["eval", *MODEL, "--data", photos / "dusk", "--method", "source,norm"]
    result = run(*words, "--out", tmp_path / "out", "--seeds", "2", "--batch-size", "8")
    assert "NLL" in result.stdout
    assert "ECE" in result.stdout
    assert "standard deviation over 2 seeds" in result.stdout
    assert {line["seed"] for line in read_suite(tmp_path / "out")} == {0, 1}
    rows = json.loads((tmp_path / "out" / "result.json").read_text())["runs"]
    # The source model knows no order; sums of 20 float32 numbers know theirs, to 20 · 2⁻²⁴ or so.
    assert rows[0]["nll"] == pytest.approx(rows[1]["nll"], rel=1e-5)


def test_the_builtin_task_with_everything_made_on_the_way(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["eval", "--model", "builtin", "--device", "cpu", "--data", "builtin", "--out", out]
    words += ["--images", "20", "--batch-size", "10", "--corruptions", "contrast"]
    words += ["--source-images", "32", "--method", "norm,swr_nsp"]
    result = run(*words)
    assert "builtin on builtin (generated), severity 5" in result.stdout
    (made,) = (out / "artifacts").glob("*.acclimate")
    assert set(Artifact.load(made).parts) == {"penalty", "prototypes"}
    before = made.stat().st_mtime_ns
    again = run(*words, "--resume")
    assert "penalty" not in again.stderr
    assert made.stat().st_mtime_ns == before
    assert again.stdout == result.stdout


@pytest.mark.slow
def test_a_killed_process_is_resumed_as_if_nothing_had_happened(
    photos: Path, tmp_path: Path
) -> None:
    common = ["eval", "--model", "tests.cli_models:mortal_cnn", "--device", "cpu"]
    common += ["--data", str(photos), "--method", "source,tent", "--set", "lr=0.05"]
    common += ["--batch-size", "5", "--out"]
    run(*common, tmp_path / "uncut")
    out = tmp_path / "out"
    killed = subprocess.run(
        [sys.executable, "-c", "from acclimate.cli.main import main; main()", *common, str(out)],
        cwd=ROOT,
        env={**os.environ, "KILL_AT": "15", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    cut = read_suite(out)
    assert 0 < len(cut) < 16
    assert {line["unit"] for line in cut} == {"dawn", "dusk"}
    assert not (out / "result.json").exists()
    with raises("other_settings", differences={"methods.tent.lr": (0.05, 0.5)}):
        run(*common, out, "--resume", "--set", "lr=0.5")
    run(*common, out, "--resume")

    def stable(folder: Path) -> list[tuple]:
        return sorted(
            (
                tuple((k, str(v)) for k, v in line.items() if k not in VOLATILE)
                for line in read_suite(folder)
            ),
            key=str,
        )

    assert stable(out) == stable(tmp_path / "uncut")
    # Those of the first domain were taken over, times and all.
    first = [line for line in cut if line["unit"] == "dawn"]
    assert [line for line in read_suite(out) if line["unit"] == "dawn"] == sorted(
        first, key=lambda line: (line["method"] != "source", line["index"])
    )


def test_an_interrupt_says_how_to_go_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("acclimate.bench.execute.execute", interrupt)
    result = run("eval", *MODEL, "--data", photos, "--method", "norm", "--out", tmp_path / "out")
    assert result.exit_code != 0
    assert "--resume to continue" in result.stderr


def test_mistakes_are_refused_before_anything_is_written(
    photos: Path, artifact: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    common = ["eval", *MODEL, "--out", out, "--data"]
    with raises("artifact_needed", methods=("swr_nsp",)):
        run(*common, photos)
    with raises("unknown_option", InvalidConfig, option="lrr", known=lambda known: "lr" in known):
        run(*common, photos, "--method", "tent", "--set", "lrr=1")
    with raises("malformed", option="severity", found="high"):
        run(*common, "builtin", "--severity", "high")
    with raises("count_mismatch", expected=4, found=10):
        run(*common, "builtin", "--method", "norm", "--images", "4")
    with raises("not_applicable", option="size"):
        run(*common, "builtin", "--method", "norm", "--images", "4", "--size", "8")
    with raises("out_of_range", option="seeds", found=0):
        run(*common, photos, "--method", "norm", "--seeds", "0")
    with raises("unknown_name", kind="stream", name="continous"):
        run(*common, photos, "--method", "norm", "--stream", "continous")
    names = tmp_path / "names.txt"
    names.write_text("fox\ndog\neel\ncat\n")
    with raises("class_mismatch", found=("fox", "dog", "eel", "cat"), expected=CLASSES):
        run(*common, photos, "--classes", names, "--artifact", artifact)
    write_images(tmp_path / "other", {"cat": 3, "wolf": 3})
    with raises("class_mismatch", found=("cat", "wolf"), expected=CLASSES):
        run(*common, tmp_path / "other", "--artifact", artifact)
    assert not out.exists()


def test_help_teaches() -> None:
    text = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["eval", "--help"]).output
    assert "Example: acclimate eval" in " ".join(text.split())
    command = typer.main.get_command(app).commands["eval"]  # type: ignore[attr-defined]
    for parameter in command.params:
        assert getattr(parameter, "help", None), parameter.name


def test_all_methods_may_be_guarded(photos: Path, artifact: Path, tmp_path: Path) -> None:
    """The guard needs a part of its own, which is prepared if there is no artifact."""
    words = ["eval", *MODEL, "--data", photos, "--method", "source,tent", "--guard"]
    reckless = ("--set", "tent.lr=10", "--set", "tent.optimizer=sgd", "--batch-size", "2")
    out = tmp_path / "a"
    result = run(*words, *reckless, "--artifact", artifact, "--out", out)
    assert "every method under guard" in " ".join(result.stdout.split())
    facts = json.loads((out / "result.json").read_text())["provenance"]
    assert facts["settings"]["guard"] is True
    with raises("artifact_needed", methods=()):  # none of the methods needs one, but the guard
        run(*words, "--out", tmp_path / "b")
    source = write_images(tmp_path / "source", dict.fromkeys(CLASSES, 3))
    run(*words, "--source-data", source, "--size", "8", "--out", tmp_path / "c")
    (made,) = (tmp_path / "c" / "artifacts").glob("*.acclimate")
    assert "accuracy" in Artifact.load(made).parts


def test_streams_have_their_own_options(photos: Path, tmp_path: Path) -> None:
    words = ["eval", *MODEL, "--data", photos, "--method", "source", "--size", "8"]
    with raises("not_applicable", option="order"):
        run(*words, "--stream", "mixed", "--order", "file", "--out", tmp_path / "a")
    run(*words, "--stream", "imbalanced", "--ratio", "4", "--out", tmp_path / "b")
    facts = json.loads((tmp_path / "b" / "result.json").read_text())["provenance"]
    assert facts["settings"]["protocol"]["ratio"] == 4
