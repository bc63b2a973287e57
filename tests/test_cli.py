"""The command line: what each command prints, writes and refuses."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

import acclimate
from acclimate.artifact import Artifact
from acclimate.cli.adapt import parse_settings
from acclimate.cli.inspect import draw_bar, draw_columns
from acclimate.cli.main import app, main
from acclimate.cli.models import get_device, load_model
from acclimate.cli.options import get_normalization
from acclimate.errors import (
    AcclimateError,
    ArtifactMismatch,
    BadInput,
    CorruptFile,
    InvalidConfig,
    UnknownMethod,
)
from tests.cli_models import CLASSES, tiny_cnn

ROOT = Path(__file__).parent.parent
MODEL = ("--model", "tests.cli_models:tiny_cnn", "--device", "cpu")


def run(*arguments: str | Path) -> Result:
    """Run a command in this process; a failure is the error itself."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(part) for part in arguments])
    if isinstance(result.exception, AcclimateError):
        raise result.exception
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def make_images(folder: Path, n: int, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(np.random.default_rng(seed).integers(0, 256, (n, 8, 8, 3))):
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03}.png")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "photos"
    make_images(folder / "monday", 15, 1)
    make_images(folder / "tuesday" / "noon", 11, 2)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for seed, name in enumerate(CLASSES):
        make_images(folder / name, 8, seed)
    return folder


@pytest.fixture(scope="module")
def artifact(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("artifact") / "tiny.acclimate"
    result = run("prepare", source, *MODEL, "--out", out, "--samples", "16", "--batch-size", "10")
    assert result.exit_code == 0
    return out


# Speed and help -------------------------------------------------------------------------------


def test_commands_import_nothing_slow_before_they_run() -> None:
    """`acclimate --help` must not wait for torch: cli modules import the library when called."""
    allowed = {"acclimate._version", "acclimate.errors", "typer", "__future__"}
    for path in (ROOT / "src" / "acclimate" / "cli").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                standard = name.partition(".")[0] in sys.stdlib_module_names
                own = name.startswith("acclimate.cli.")
                assert standard or own or name in allowed, f"{path.name} imports {name}"


@pytest.mark.parametrize("command", ["prepare", "adapt", "inspect", "doctor", "methods"])
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    text = run(command, "--help").output
    assert f"Example: acclimate {command}" in " ".join(text.split())


def test_every_option_has_a_line_of_help() -> None:
    group = typer.main.get_command(app)
    for name in ("prepare", "adapt", "inspect", "doctor"):
        for parameter in group.commands[name].params:  # type: ignore[attr-defined]
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


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
    assert output.err.startswith('UnknownMethod: there is no method "tnet". Did you mean "tent"?')
    assert "Traceback" not in output.err
    assert "\x1b" not in output.err


def test_brackets_and_odd_bytes_in_a_message_are_shown_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = b"[red]\xff[/nothing].acclimate".decode("utf-8", "surrogateescape")
    monkeypatch.setattr(sys, "argv", ["acclimate", "inspect", odd])
    with pytest.raises(SystemExit):
        main()
    assert "[red]�[/nothing].acclimate is not a file" in capsys.readouterr().err


# Methods --------------------------------------------------------------------------------------


def test_methods_lists_every_method_with_its_sentence() -> None:
    text = run("methods").output
    for name in acclimate.list_methods():
        kind = acclimate.get_method(name)
        assert name in text
        assert (kind.__doc__ or "").splitlines()[0] in text
    assert "moves all parameters · needs penalty and prototypes · 2 forwards, 1 backward" in text


def test_methods_show_has_links_and_every_hyper_parameter() -> None:
    text = run("methods", "show", "swr_nsp").output
    assert "https://arxiv.org/abs/2207.11707" in text
    for name, value in acclimate.get_method("swr_nsp").config_class().to_dict().items():
        line = next(line for line in text.splitlines() if line.startswith(f"{name} "))
        assert f"{value:g}" in line if isinstance(value, float) else str(value) in line
    assert "1e-05 … 0.01 (log)" in text
    with pytest.raises(UnknownMethod):
        run("methods", "show", "swr-nps")


# Models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("tests.cli_models", "package.module:function"),
        ("tests.cli_models:", "package.module:function"),
        (
            "tests.nowhere:tiny",
            r'no module "tests.nowhere" was found; looked for tests/nowhere\.py',
        ),
        ("tests.cli_models:tiny_cmm", 'Did you mean "tiny_cnn"'),
        ("tests.cli_models:NUMBER", "found a int"),
        ("tests.cli_models:needs_argument", "TypeError.*without arguments"),
        ("tests.cli_models:fails", r"RuntimeError: the licence has expired .*cli_models\.py, line"),
        ("tests.cli_models:not_a_model", "torch.nn.Module, found str"),
    ],
)
def test_a_model_that_cannot_be_had_is_explained(spec: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        load_model(spec, None, "cpu")


def test_the_model_of_the_demo_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_cnn()
    monkeypatch.setattr("acclimate.builtin.load_model", lambda: model)
    assert load_model("builtin", None, "cpu") is model


def test_modules_that_fail_are_told_from_modules_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needy_models.py").write_text("import not_installed_anywhere")
    with pytest.raises(BadInput, match='needs the module "not_installed_anywhere"'):
        load_model("needy_models:f", None, "cpu")
    (tmp_path / "wrong_models.py").write_text("1 / 0")
    with pytest.raises(BadInput, match=r"ZeroDivisionError.*wrong_models\.py, line 1"):
        load_model("wrong_models:f", None, "cpu")


@pytest.mark.parametrize("form", ["plain", "state_dict", "model", "module", "safetensors"])
def test_weights_are_loaded_in_every_usual_form(form: str, tmp_path: Path) -> None:
    state = {name: torch.randn_like(t.float()).to(t) for name, t in tiny_cnn().state_dict().items()}
    path = tmp_path / "weights.pt"
    if form == "safetensors":
        path = path.with_suffix(".safetensors")
        save_file(state, path)
    elif form == "module":
        torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}, path)
    else:
        torch.save(state if form == "plain" else {form: state}, path)
    loaded = load_model("tests.cli_models:tiny_cnn", path, "cpu").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_weights_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    state = dict(tiny_cnn().state_dict())
    state["6.weight"] = torch.zeros(9, 24)
    del state["0.bias"]
    state |= {f"extra{number}": torch.zeros(2) for number in range(12)}
    torch.save(state, tmp_path / "weights.pt")
    with pytest.raises(ArtifactMismatch) as error:
        load_model("tests.cli_models:tiny_cnn", tmp_path / "weights.pt", "cpu")
    text = str(error.value)
    assert "6.weight: (4, 24) in the model, (9, 24) in the file" in text
    assert "0.bias: (6,) in the model, not in the file" in text
    assert "extra0: (2,) in the file, not in the model" in text
    assert "(+ 2 more)" in text


def test_files_that_could_run_code_or_are_damaged_are_refused(tmp_path: Path) -> None:
    def load(name: str) -> None:
        load_model("tests.cli_models:tiny_cnn", tmp_path / name, "cpu")

    torch.save(tiny_cnn(), tmp_path / "whole.pt")
    with pytest.raises(CorruptFile, match=r"could execute code.*state_dict\(\)"):
        load("whole.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CorruptFile, match=r"expected a state dict .* found list"):
        load("list.pt")
    torch.save(tiny_cnn().state_dict(), tmp_path / "good.pt")
    for name, content in {
        "empty.pt": b"",
        "text.pt": b"hello, world",
        "cut.pt": (tmp_path / "good.pt").read_bytes()[:900],
        "text.safetensors": b"hello, world",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CorruptFile, match=name):
            load(name)
    with pytest.raises(BadInput, match="there is no file"):
        load("nowhere.pt")


def test_devices_and_normalisations_are_checked() -> None:
    assert get_device("cpu").type == "cpu"
    with pytest.raises(BadInput, match=r'no device "cpuu"\. Did you mean "cpu"'):
        get_device("cpuu")
    assert get_normalization(None, None, None) is None
    normal = get_normalization(None, "0.5,0.4,0.3", "1,2,3")
    assert normal is not None
    assert (normal.mean, normal.std) == ((0.5, 0.4, 0.3), (1.0, 2.0, 3.0))
    with pytest.raises(BadInput, match="give both"):
        get_normalization(None, "0.5", None)
    with pytest.raises(BadInput, match="not both"):
        get_normalization("imagenet", "0.5", "1")
    with pytest.raises(InvalidConfig, match='Did you mean "imagenet"'):
        get_normalization("imagnet", None, None)


# Prepare --------------------------------------------------------------------------------------


def test_prepare_writes_an_artifact_for_the_model_and_says_what_is_next(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tiny.acclimate"
    options = ["--normalization", "imagenet", "--size", "6", "--samples", "16", "--seed", "3"]
    result = run(
        "prepare", source, *MODEL, "--out", out, *options, "--projector", "1", "--epochs", "2"
    )
    written = Artifact.load(out)
    written.check(tiny_cnn())
    assert written.card["input_shape"] == [3, 6, 6]
    assert written.normalization == acclimate.Normalization.of("imagenet")
    assert written.parts["penalty"]["n_samples"] == 16
    assert written.parts["features"]["n_samples"] == 32
    assert written.parts["prototypes"]["projector_depth"] == 1
    assert written.card["seed"] == 3
    assert written.classes == list(CLASSES)
    assert "32 images, of which the model gets" in result.stdout
    assert f"--artifact {out} --out predictions.csv" in result.stdout
    assert "penalty (16)" in result.stderr


def test_prepare_gives_what_the_library_gives(source: Path, artifact: Path) -> None:
    from acclimate.streams.folder import FolderSource

    data = FolderSource(source, batch_size=10)
    expected = acclimate.prepare(tiny_cnn(), data, penalty=acclimate.PenaltyOptions(n_samples=16))
    found = Artifact.load(artifact)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor), name


def test_prepare_does_not_overwrite_and_tells_of_unreadable_images(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tiny.acclimate"
    out.write_text("precious")
    with pytest.raises(BadInput, match=r"tiny\.acclimate exists already.*--force"):
        run("prepare", source, *MODEL, "--out", out)
    assert out.read_text() == "precious"
    broken = source / "cat" / "broken.png"
    broken.write_bytes(b"no image")
    try:
        result = run("prepare", source, *MODEL, "--out", out, "--force", "--samples", "64")
    finally:
        broken.unlink()
    assert "1 unreadable image(s) left out" in result.stderr
    assert "note: the penalty was to be measured on 64 source samples" in result.stderr
    Artifact.load(out)
    with pytest.raises(BadInput, match="there is no folder"):
        run("prepare", source, *MODEL, "--out", tmp_path / "none" / "x.acclimate")


def test_models_in_half_precision_and_with_several_outputs(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    common = ["adapt", photos, "--device", "cpu", "--method", "norm", "--out", out]
    run(*common, "--model", "tests.cli_models:low_precision_cnn")
    assert len(out.read_text().splitlines()) == 27
    run(*common, "--model", "tests.cli_models:two_outputs", "--logits-at", "1", "--force")
    with pytest.raises(BadInput, match="cannot both be"):
        run(*common, *MODEL, "--state", out, "--force")


# Adapt ----------------------------------------------------------------------------------------


def test_adapt_writes_predictions_and_sums_up(photos: Path, artifact: Path, tmp_path: Path) -> None:
    out, state = tmp_path / "out.csv", tmp_path / "learned.state"
    arguments = ["adapt", photos, *MODEL, "--artifact", artifact, "--out", out]
    options = ["--batch-size", "10", "--guard", "--state", state]
    result = run(*arguments, *options, "--set", "lr=0.01", "--set", "anchor=source")
    rows = [line.split(",") for line in out.read_text().splitlines()]
    assert len(rows) == 27
    assert rows[1][0] == "monday/000.png"
    assert rows[-1][0] == "tuesday/noon/010.png"
    assert {row[1] for row in rows[1:]} <= set(CLASSES)
    assert "26 in 3 batches" in result.stdout
    adapted = acclimate.adapt(
        tiny_cnn(), artifact=Artifact.load(artifact), guard=True, lr=0.01, anchor="source"
    )
    adapted.load(state)  # refused if anything were different
    assert adapted.counts.batches == 3
    with pytest.raises(BadInput, match="exists already"):
        run(*arguments, *options)


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
        env={**os.environ, "KILL_AT": "4", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not out.exists()
    result = run(*common, "--out", out, "--resume")
    assert out.read_bytes() == (tmp_path / "uncut.csv").read_bytes()
    # The first forward was the dry run on a new shape, the fourth that of the third batch.
    assert "5 batches, 2 of them taken over" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "uncut.csv"]


def test_an_interrupt_says_how_to_go_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("acclimate.streams.predictions.predict_folder", interrupt)
    out = tmp_path / "out.csv"
    result = run("adapt", photos, *MODEL, "--method", "tent", "--out", out)
    assert result.exit_code != 0
    assert "--resume to go on" in result.stderr


def test_settings_are_parsed_by_what_they_look_like() -> None:
    texts = ["lr=1e-4", "depth=3", "nesterov=True", "views=none", "a = b=c"]
    expected = {"lr": 1e-4, "depth": 3, "nesterov": True, "views": "none", "a": "b=c"}
    assert parse_settings(texts) == expected
    assert type(parse_settings(["depth=3"])["depth"]) is int
    for text in ("lr", "=3"):
        with pytest.raises(InvalidConfig, match="NAME=VALUE"):
            parse_settings([text])


def test_adapt_refuses_before_it_works(photos: Path, artifact: Path, tmp_path: Path) -> None:
    arguments = ["adapt", photos, *MODEL, "--artifact", artifact, "--out", tmp_path / "out.csv"]
    with pytest.raises(InvalidConfig, match=r'no hyper-parameter "lrr"\. Did you mean "lr"'):
        run(*arguments, "--set", "lrr=1")
    with pytest.raises(InvalidConfig, match='no hyper-parameter "seed"'):
        run(*arguments, "--set", "seed=1")
    with pytest.raises(UnknownMethod):
        run(*arguments, "--method", "tnet")
    with pytest.raises(InvalidConfig, match="the artifact was prepared with"):
        run(*arguments, "--normalization", "imagenet")
    with pytest.raises(BadInput, match=r"expected samples of shape \(3, 8, 8\)"):
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
        line = next(line for line in text.splitlines() if line.startswith(f"{name} "))
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
    shown = [line.split()[0] for line in text.splitlines() if line.startswith("layer")]
    assert shown == [f"layer{n}" for n in (99, 98, 97, 96, 95, 4, 3, 2, 1, 0)]
    text = run("inspect", tmp_path / "many.acclimate", "--all").output
    shown = [line.split()[0] for line in text.splitlines() if line.startswith("layer")]
    assert shown == [f"layer{n}" for n in range(100)]  # 10 after 9, not after 1


def test_inspect_shows_a_state(tmp_path: Path) -> None:
    adapted = acclimate.adapt(tiny_cnn(), "tent", lr=0.02)
    adapted(torch.rand(7, 3, 8, 8))
    adapted.save(tmp_path / "kept.state")
    text = " ".join(run("inspect", tmp_path / "kept.state").output.split())
    for part in ("method tent", "batches 1", "samples 7", "lr=0.02", "guard off"):
        assert part in text


def test_inspect_refuses_other_files(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "foreign.safetensors")
    with pytest.raises(CorruptFile, match="no acclimate card"):
        run("inspect", tmp_path / "foreign.safetensors")
    (tmp_path / "text").write_text("hello, world")
    with pytest.raises(CorruptFile, match="not a safetensors file"):
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
    assert "✓  batch size            26" in result.stdout


def test_doctor_ends_with_code_one_if_there_is_a_problem(artifact: Path) -> None:
    options = ["--input-shape", "3,8,8", "--batch-size", "1"]
    result = run("doctor", *MODEL, *options)
    assert result.exit_code == 1
    assert "1 problem found." in result.stdout
    assert "random numbers: the range of real images was not checked" in result.stdout
    result = run("doctor", *MODEL, "--artifact", artifact)  # the shape is in the artifact
    assert result.exit_code == 0


def test_doctor_needs_something_to_look_at() -> None:
    with pytest.raises(BadInput, match="--images DIR, --input-shape"):
        run("doctor", *MODEL)
    with pytest.raises(BadInput, match="such as 3,224,224"):
        run("doctor", *MODEL, "--input-shape", "3,a,8")
    with pytest.raises(BadInput, match="at least 1"):
        run("doctor", *MODEL, "--input-shape", "3,8,8", "--batch-size", "0")
