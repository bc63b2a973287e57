"""Models, weights and devices as they are named on the command line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from acclimate.commands.base import ModelOptions
from acclimate.errors import InvalidConfig
from acclimate.functional.inputs import Normalization
from acclimate.zoo.named import get_device, load_named
from tests.cli_models import tiny_cnn
from tests.codes import raises

MODEL = ("--model", "tests.cli_models:tiny_cnn", "--device", "cpu")


def test_models_that_cannot_be_had_are_refused() -> None:
    def load(spec: str) -> None:
        load_named(spec, None)

    with raises("unknown_name", kind="model", name="tests.cli_models"):
        load("tests.cli_models")
    with raises("malformed", option="model", found="tests.cli_models:"):
        load("tests.cli_models:")
    with raises("unknown_name", kind="module", name="tests.nowhere"):
        load("tests.nowhere:tiny")
    with raises("unknown_name", kind="function", known=lambda known: "tiny_cnn" in known):
        load("tests.cli_models:tiny_cmm")
    with raises("wrong_type", option="function", found="int"):
        load("tests.cli_models:NUMBER")
    with raises("model_function_failed", name="tests.cli_models:needs_argument") as caught:
        load("tests.cli_models:needs_argument")
    assert isinstance(caught.value.__cause__, TypeError)
    with raises("model_function_failed", name="tests.cli_models:fails") as caught:
        load("tests.cli_models:fails")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with raises("wrong_type", option="model", found="str"):
        load("tests.cli_models:not_a_model")


def test_the_model_of_the_demo_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_cnn()
    monkeypatch.setattr("acclimate.builtin.load_model", lambda: model)
    assert load_named("builtin", None) is model


def test_modules_that_fail_are_told_from_modules_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needy_models.py").write_text("import not_installed_anywhere")
    with raises("import_failed", name="not_installed_anywhere"):
        load_named("needy_models:f", None)
    (tmp_path / "wrong_models.py").write_text("1 / 0")
    with raises("import_failed", name="wrong_models") as caught:
        load_named("wrong_models:f", None)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_message_says_where_the_users_own_code_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_models.py").write_text("1 / 0")
    with raises("import_failed") as caught:
        load_named("broken_models:f", None)
    assert re.search(r"ZeroDivisionError.*broken_models\.py, line 1", str(caught.value))
    with raises("model_function_failed") as caught:
        load_named("tests.cli_models:fails", None)
    assert re.search(r"the licence has expired.*cli_models\.py, line", str(caught.value))


@pytest.mark.parametrize("form", ["plain", "state_dict", "model", "module", "safetensors"])
def test_weights_are_loaded_in_every_usual_form(form: str, tmp_path: Path) -> None:
    # Positive: other values than those of a new model, and possible ones for variances and counts.
    state = {n: (2 + torch.rand_like(t.float())).to(t) for n, t in tiny_cnn().state_dict().items()}
    path = tmp_path / "weights.pt"
    if form == "safetensors":
        path = path.with_suffix(".safetensors")
        save_file(state, path)
    elif form == "module":
        torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}, path)
    else:
        torch.save(state if form == "plain" else {form: state}, path)
    loaded = load_named("tests.cli_models:tiny_cnn", path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_weights_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    state = dict(tiny_cnn().state_dict())
    state["6.weight"] = torch.zeros(9, 24)
    del state["0.bias"]
    state |= {f"extra{number}": torch.zeros(2) for number in range(12)}
    torch.save(state, tmp_path / "weights.pt")
    with raises("other_weights", differences=lambda found: len(found) == 14) as caught:
        load_named("tests.cli_models:tiny_cnn", tmp_path / "weights.pt")
    found = {line.partition(": ")[0]: line.partition(": ")[2] for line in caught.value.differences}
    assert set(found) == {"6.weight", "0.bias", *(f"extra{number}" for number in range(12))}
    # Sizes in the model and in the file, or in one of them.
    assert re.findall(r"\(.*?\)", found["6.weight"]) == ["(4, 24)", "(9, 24)"]
    assert re.findall(r"\(.*?\)", found["0.bias"]) == ["(6,)"]
    assert re.findall(r"\(.*?\)", found["extra0"]) == ["(2,)"]
    # The message lists the first ones only.
    assert all(line in str(caught.value) for line in caught.value.differences[:12])
    assert not any(line in str(caught.value) for line in caught.value.differences[12:])


def test_files_that_could_run_code_or_are_damaged_are_refused(tmp_path: Path) -> None:
    def load(name: str) -> None:
        load_named("tests.cli_models:tiny_cnn", tmp_path / name)

    torch.save(tiny_cnn(), tmp_path / "whole.pt")
    with raises("unsafe_file", path=tmp_path / "whole.pt"):
        load("whole.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with raises("wrong_content", path=tmp_path / "list.pt"):
        load("list.pt")
    torch.save(tiny_cnn().state_dict(), tmp_path / "good.pt")
    for name, content in {
        "empty.pt": b"",
        "text.pt": b"hello, world",
        "cut.pt": (tmp_path / "good.pt").read_bytes()[:900],
        "text.safetensors": b"hello, world",
    }.items():
        (tmp_path / name).write_bytes(content)
        with raises("unreadable_file", path=tmp_path / name):
            load(name)
    with raises("not_found", path=tmp_path / "nowhere.pt"):
        load("nowhere.pt")


def get_normalization(**given: str) -> Normalization | None:
    return ModelOptions(model="builtin", **given).get_normalization()


def test_devices_and_normalisations_are_checked() -> None:
    assert get_device("cpu").type == "cpu"
    with raises("unknown_name", kind="device", name="cpuu", known=lambda known: "cpu" in known):
        get_device("cpuu")
    assert get_normalization() is None
    normal = get_normalization(mean="0.5,0.4,0.3", std="1,2,3")
    assert normal is not None
    assert (normal.mean, normal.std) == ((0.5, 0.4, 0.3), (1.0, 2.0, 3.0))
    with raises("missing_option", option="std"):
        get_normalization(mean="0.5")
    with raises("conflicting_options", options=("normalization", "mean")):
        get_normalization(normalization="imagenet", mean="0.5", std="1")
    with raises("unknown_name", InvalidConfig, kind="normalization", name="imagnet"):
        get_normalization(normalization="imagnet")


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
    load_named(name, None, n_classes)
    assert [*calls[0], None][2] == asked
