"""The command line: what each command prints, writes and refuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

import acclimate
from acclimate.artifact import Artifact
from acclimate.cli.inspect import draw_bar, draw_columns
from acclimate.cli.main import app, main
from acclimate.commands.base import parse_settings
from acclimate.errors import InvalidConfig
from tests.cli_models import CLASSES, tiny_cnn
from tests.codes import raises
from tests.images import labelled_batches, write_images
from tests.paths import ROOT

MODEL = ("--model", "tests.cli_models:tiny_cnn", "--device", "cpu")


def run(*arguments: str | Path) -> Result:
    """Run a command in this process; a failure is the error itself."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(part) for part in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def make_images(folder: Path, n: int, seed: int = 0) -> None:
    """Write noise images of 8×8 pixels, `folder/000.png` and so on."""
    write_images(folder, {"": n}, seed=seed)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "photos"
    make_images(folder / "monday", 15, 1)
    make_images(folder / "tuesday" / "noon", 11, 2)
    return folder


@pytest.fixture(scope="module")
def artifact(labelled_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("artifact") / "tiny.acclimate"
    result = run(
        "prepare", labelled_images, *MODEL, "--out", out, "--samples", "16", "--batch-size", "10"
    )
    assert result.exit_code == 0
    return out


# Errors ---------------------------------------------------------------------------------------


def test_a_mistake_is_one_message_on_stderr_and_exit_code_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["acclimate", "methods", "show", "tnet"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("UnknownMethod [unknown_method]: ")
    assert '"tnet"' in output.err
    assert '"tent"?' in output.err
    assert output.err.count("\n") == 1
    assert "Traceback" not in output.err
    assert "\x1b" not in output.err


def test_brackets_and_odd_bytes_in_a_message_are_shown_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = b"[red]\xff[/nothing].acclimate".decode("utf-8", "surrogateescape")
    monkeypatch.setattr(sys, "argv", ["acclimate", "inspect", odd])
    with pytest.raises(SystemExit):
        main()
    error = capsys.readouterr().err
    assert error.startswith("BadInput [not_found]: ")
    assert "[red]�[/nothing].acclimate" in error


# Prepare --------------------------------------------------------------------------------------


def test_prepare_writes_an_artifact_for_the_model_and_says_what_is_next(
    labelled_images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tiny.acclimate"
    options = ["--normalization", "imagenet", "--size", "6", "--samples", "16", "--seed", "3"]
    result = run(
        "prepare",
        labelled_images,
        *MODEL,
        "--out",
        out,
        *options,
        "--projector",
        "1",
        "--epochs",
        "2",
    )
    written = Artifact.load(out)
    written.check(tiny_cnn())
    assert written.card["input_shape"] == [3, 6, 6]
    assert written.normalization == acclimate.Normalization.of("imagenet")
    assert written.parts["penalty"]["n_samples"] == 16
    assert written.parts["features"]["n_samples"] == 32
    assert written.parts["prototypes"]["projector_depth"] == 1
    assert "accuracy" not in written.parts  # of images this small
    assert written.card["seed"] == 3
    assert written.classes == list(CLASSES)
    assert "32 images, of which the model gets" in result.stdout
    assert f"--artifact {out} --out predictions.csv" in result.stdout
    assert "The part accuracy was left out" in " ".join(result.stderr.split())
    assert "penalty (16)" in result.stderr


def test_prepare_leaves_out_the_part_accuracy_on_request(
    labelled_images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tiny.acclimate"
    words = [
        "prepare",
        labelled_images,
        *MODEL,
        "--out",
        out,
        "--samples",
        "16",
        "--method",
        "tent",
    ]
    result = run(*words, "--no-accuracy")
    assert list(Artifact.load(out).parts) == ["features"]
    assert "The part accuracy was left out" not in " ".join(result.stderr.split())  # no surprise
    result = run(*words, "--force")
    assert list(Artifact.load(out).parts) == ["features", "accuracy"]


def test_prepare_gives_what_the_library_gives(labelled_images: Path, artifact: Path) -> None:
    data = labelled_batches(labelled_images, batch_size=10)
    parts = [
        acclimate.Penalty(n_samples=16),
        "prototypes",
        "features",
        "accuracy",
        "mirror",
        "confidence",
    ]
    expected = acclimate.prepare(tiny_cnn(), data, parts=parts)
    found = Artifact.load(artifact)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor), name


def test_prepare_records_the_speed_asked_for(
    labelled_images: Path, tmp_path: Path, artifact: Path
) -> None:
    from acclimate.functional.precision import has_fast_bfloat16

    out = tmp_path / "fast.acclimate"
    options = ["--samples", "16", "--batch-size", "10", "--speed", "fast"]
    result = run("prepare", labelled_images, *MODEL, "--out", out, *options)
    used = "bfloat16" if has_fast_bfloat16(torch.device("cpu")) else "float32"
    assert f"s in {used}" in result.stdout
    found = Artifact.load(out)
    precisions = {name: (part["speed"], part["precision"]) for name, part in found.parts.items()}
    for name in ("accuracy", "mirror", "confidence"):  # always exact
        assert precisions.pop(name) == ("fast", "float32")
    assert set(precisions.values()) == {("fast", used)}
    if used == "float32":
        for name, tensor in Artifact.load(artifact).tensors.items():
            assert torch.equal(found.tensors[name], tensor), name
    with raises("unknown_name", InvalidConfig, kind="speed", name="fest", known=("exact", "fast")):
        run("prepare", labelled_images, *MODEL, "--out", out, "--force", "--speed", "fest")


def test_prepare_does_not_overwrite_and_tells_of_unreadable_images(
    labelled_images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tiny.acclimate"
    out.write_text("precious")
    with raises("already_exists", path=out):
        run("prepare", labelled_images, *MODEL, "--out", out)
    assert out.read_text() == "precious"
    broken = labelled_images / "cat" / "broken.png"
    broken.write_bytes(b"no image")
    try:
        result = run("prepare", labelled_images, *MODEL, "--out", out, "--force", "--samples", "64")
    finally:
        broken.unlink()
    assert "1 unreadable image(s) left out" in result.stderr
    assert re.search(r"^note: .*\b64\b.*\b32\b", result.stderr, re.MULTILINE)  # few samples
    Artifact.load(out)
    with raises("not_found", path=tmp_path / "none"):
        run("prepare", labelled_images, *MODEL, "--out", tmp_path / "none" / "x.acclimate")


def test_models_in_half_precision_and_with_several_outputs(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    common = ["adapt", photos, "--device", "cpu", "--method", "norm", "--out", out]
    run(*common, "--model", "tests.cli_models:low_precision_cnn")
    assert len(out.read_text().splitlines()) == 27
    run(*common, "--model", "tests.cli_models:two_outputs", "--logits-at", "1", "--force")
    (tmp_path / "link.csv").symlink_to(out)
    for state in (out, tmp_path / "link.csv", tmp_path / "out.csv.part"):
        with raises("conflicting_options", options=("out", "state")):
            run(*common, *MODEL, "--state", state, "--force")


# Adapt ----------------------------------------------------------------------------------------


def test_adapt_writes_predictions_and_sums_up(photos: Path, artifact: Path, tmp_path: Path) -> None:
    out, state = tmp_path / "out.csv", tmp_path / "learned.state"
    arguments = ["adapt", photos, *MODEL, "--artifact", artifact, "--out", out]
    options = ["--batch-size", "10", "--guard", "--state", state]
    result = run(*arguments, *options, "--set", "lr=0.02", "--set", "damping=10")
    rows = [line.split(",") for line in out.read_text().splitlines()]
    assert len(rows) == 27
    assert rows[1][0] == "monday/000.png"
    assert rows[-1][0] == "tuesday/noon/010.png"
    assert {row[1] for row in rows[1:]} <= set(CLASSES)
    assert "26 in 3 batches" in result.stdout
    adapted = acclimate.adapt(
        tiny_cnn(), artifact=Artifact.load(artifact), guard=True, lr=0.02, damping=10.0
    )
    adapted.load(state)  # refused if anything were different
    assert adapted.counts.batches == 3
    with raises("already_exists", path=out):
        run(*arguments, *options)


def test_terms_and_presets_are_those_of_the_library(
    photos: Path, artifact: Path, tmp_path: Path
) -> None:
    state = tmp_path / "learned.state"
    common = ["adapt", photos, *MODEL, "--artifact", artifact, "--out", tmp_path / "out.csv"]
    options = ["--method", "tent", "--terms", "swr,nsp"]
    run(*common, *options, "--preset", "imagenet", "--set", "lr=0.01", "--state", state)
    adapted = acclimate.adapt(
        tiny_cnn(),
        "tent",
        Artifact.load(artifact),
        preset="imagenet",
        terms=["swr", "nsp"],
        lr=0.01,
    )
    adapted.load(state)  # refused if anything were different
    assert adapted.config.optimizer == "sgd"


def test_prepare_makes_what_a_method_needs(labelled_images: Path, tmp_path: Path) -> None:
    out = tmp_path / "tent.acclimate"
    run("prepare", labelled_images, *MODEL, "--out", out, "--method", "tent,swr", "--samples", "16")
    assert set(Artifact.load(out).parts) == {"penalty", "features", "accuracy"}
    with raises("unknown_method", name="tnet"):
        run("prepare", labelled_images, *MODEL, "--out", out, "--force", "--method", "tnet")


@pytest.mark.slow
def test_a_killed_process_is_resumed_as_if_nothing_had_happened(
    photos: Path, tmp_path: Path
) -> None:
    options = ["--method", "tent", "--set", "lr=0.05", "--batch-size", "6", "--device", "cpu"]
    common = ["adapt", str(photos), "--model", "tests.cli_models:mortal_cnn", *options]
    run(*common, "--out", tmp_path / "uncut.csv")
    out = tmp_path / "out.csv"
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            "from acclimate.cli.main import main; main()",
            *common,
            "--out",
            out,
        ],
        cwd=ROOT,
        env={**os.environ, "KILL_AT": "6", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not out.exists()
    result = run(*common, "--out", out, "--resume")
    assert out.read_bytes() == (tmp_path / "uncut.csv").read_bytes()
    # Two forwards were dry runs, of what is predicted and on a new shape; then one a batch.
    assert "5 batches, 2 of them taken over" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "uncut.csv"]


def test_an_interrupt_says_how_to_go_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("acclimate.bench.predictions.predict_folder", interrupt)
    out = tmp_path / "out.csv"
    result = run("adapt", photos, *MODEL, "--method", "tent", "--out", out)
    assert result.exit_code != 0
    assert "--resume to continue" in result.stderr


def test_settings_are_parsed_by_what_they_look_like() -> None:
    texts = ["lr=1e-4", "depth=3", "nesterov=True", "views=none", "a = b=c"]
    expected = {"lr": 1e-4, "depth": 3, "nesterov": True, "views": "none", "a": "b=c"}
    assert parse_settings(texts) == expected
    assert type(parse_settings(["depth=3"])["depth"]) is int
    for text in ("lr", "=3"):
        with raises("malformed", InvalidConfig, option="set", found=text):
            parse_settings([text])


def test_adapt_refuses_before_it_works(photos: Path, artifact: Path, tmp_path: Path) -> None:
    arguments = ["adapt", photos, *MODEL, "--artifact", artifact, "--out", tmp_path / "out.csv"]
    with raises("unknown_option", InvalidConfig, option="lrr", known=lambda known: "lr" in known):
        run(*arguments, "--set", "lrr=1")
    with raises("unknown_option", InvalidConfig, option="seed"):
        run(*arguments, "--set", "seed=1")
    with raises("unknown_method", name="tnet"):
        run(*arguments, "--method", "tnet")
    with raises("artifact_conflict", option="normalization", expected=None):
        run(*arguments, "--normalization", "imagenet")
    with raises("wrong_shape", found=(26, 3, 4, 4)):
        run(*arguments, "--size", "4")
    assert list(tmp_path.iterdir()) == []


# Inspect --------------------------------------------------------------------------------------


def test_inspect_shows_the_card_and_a_bar_for_every_tensor(artifact: Path) -> None:
    text = run("inspect", artifact).output
    written = Artifact.load(artifact)
    for part in (
        written.card["model"]["weights_sha256"][:12],
        "24 features, 4 classes",
        "3 × 8 × 8",
        "images in [0, 1]",
        "n_samples    16",
        "ColorJitter(brightness=0.8",
        f"torch {torch.__version__}",
    ):
        assert part in text
    for name, penalty in written.part("penalty").items():
        line = next(line for line in text.splitlines() if line.startswith(f" {name} "))
        assert f"{float(penalty):.3f}" in line
        assert line.count("█") == int(float(penalty) * 24 * 8 + 0.5) // 8


def test_inspect_draws_many_tensors_as_columns(artifact: Path, tmp_path: Path) -> None:
    written = Artifact.load(artifact)
    tensors = {f"penalty/layer{n}": torch.tensor(n / 99) for n in range(100)}
    tensors |= {f"cosine/layer{n}": torch.tensor(torch.nan) for n in range(100)}
    layout = {f"layer{n}": ["float32", 1] for n in range(100)}
    card = {**written.card, "model": {**written.card["model"], "layout": layout}}
    Artifact(tensors, card).save(tmp_path / "many.acclimate")
    text = run("inspect", tmp_path / "many.acclimate").output
    assert "1.0 ┤" in text
    assert "Highest 5 of 100" in text
    shown = [line.split()[0] for line in text.splitlines() if line.startswith(" layer")]
    assert shown == [f"layer{n}" for n in (99, 98, 97, 96, 95, 4, 3, 2, 1, 0)]
    text = run("inspect", tmp_path / "many.acclimate", "--all").output
    shown = [line.split()[0] for line in text.splitlines() if line.startswith(" layer")]
    assert shown == [f"layer{n}" for n in range(100)]  # 10 after 9, not after 1


def test_inspect_shows_a_state(tmp_path: Path) -> None:
    adapted = acclimate.adapt(tiny_cnn(), "tent", lr=0.02)
    adapted(torch.rand(7, 3, 8, 8))
    adapted.save(tmp_path / "kept.state")
    text = " ".join(run("inspect", tmp_path / "kept.state").output.split())
    for part in ("method tent", "batches 1", "samples 7", "lr=0.02", "guard off"):
        assert part in text


def test_inspect_shows_the_artifact_of_the_built_in_model() -> None:
    path = Path(acclimate.builtin.__file__).with_name("source.acclimate")
    assert "Part confidence" in run("inspect", path).output


def test_inspect_refuses_other_files(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "foreign.safetensors")
    with raises("not_ours", path=tmp_path / "foreign.safetensors"):
        run("inspect", tmp_path / "foreign.safetensors")
    (tmp_path / "text").write_text("hello, world")
    with raises("not_ours", path=tmp_path / "text"):
        run("inspect", tmp_path / "text")


def test_drawings_are_in_proportion() -> None:
    assert [draw_bar(value, 2) for value in (-1, 0, 1 / 16, 0.75, 1, 2)] == [
        *("", "", "▏", "█▌", "██", "██")
    ]
    assert draw_columns([0.25, 0.25, 1.0, 0.0], 2, 1) == ["▂▄"]  # neighbours averaged
    assert draw_columns([0.0, 0.5, 0.75], 80, 2) == ["  ▄", " ██"]


# Doctor ---------------------------------------------------------------------------------------


def test_doctor_finds_nothing_wrong_with_a_fitting_set(photos: Path, artifact: Path) -> None:
    result = run("doctor", *MODEL, "--images", photos, "--artifact", artifact)
    assert result.exit_code == 0
    assert "No problem found." in result.stdout
    assert "belongs to this model" in result.stdout
    assert "✓  batch size            200" in result.stdout
    assert "✓  guard                 available" in result.stdout


def test_doctor_says_that_batches_are_too_small(photos: Path, artifact: Path) -> None:
    words = ["doctor", *MODEL, "--images", photos, "--artifact", artifact, "--batch-size", "4"]
    result = run(*words)
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "Batches of 4 are too small for BatchNorm statistics" in text
    assert "--guard" in text
    assert "1 problem found." in text


def test_doctor_ends_with_code_one_if_there_is_a_problem(artifact: Path) -> None:
    options = ["--input-shape", "3,8,8", "--batch-size", "1"]
    result = run("doctor", *MODEL, *options)
    assert result.exit_code == 1
    assert "1 problem found." in result.stdout
    assert "random numbers: the range of real images was not checked" in result.stdout
    result = run("doctor", *MODEL, "--artifact", artifact)  # the shape is in the artifact
    assert result.exit_code == 0


def test_doctor_needs_something_to_look_at() -> None:
    with raises("missing_option", option="images"):
        run("doctor", *MODEL)
    with raises("malformed", option="input_shape", found="3,a,8"):
        run("doctor", *MODEL, "--input-shape", "3,a,8")
    with raises("out_of_range", option="batch_size", found=0):
        run("doctor", *MODEL, "--input-shape", "3,8,8", "--batch-size", "0")
