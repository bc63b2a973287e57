"""Models, weights and devices as they are named on the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from acclimate.cli.models import get_device, load_model
from acclimate.cli.options import get_normalization
from acclimate.errors import (
    ArtifactMismatch,
    BadInput,
    CorruptFile,
    InvalidConfig,
)
from tests.cli_models import tiny_cnn

ROOT = Path(__file__).parent.parent
MODEL = ("--model", "tests.cli_models:tiny_cnn", "--device", "cpu")


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


@pytest.mark.parametrize(
    ("name", "n_classes", "asked"),
    [
        ("resnet20", 100, 100),
        ("resnet20", 10, 10),
        ("resnet20", 7, None),  # no such entry: the weights decide, and the data is refused later
        ("resnet20-cifar10", 100, None),
    ],
)
def test_an_architecture_alone_has_the_classes_of_the_data(monkeypatch, name, n_classes, asked):
    calls = []

    def load(*arguments):
        calls.append(arguments)
        return torch.nn.Identity()

    monkeypatch.setattr("acclimate.zoo.load", load)
    load_model(name, None, "cpu", n_classes)
    assert [*calls[0], None][2] == asked
