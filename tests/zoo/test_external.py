"""Models of libraries and of the user: what they are given, and what is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.error import URLError

import pytest
import torch
from torch import nn

from acclimate import zoo
from acclimate.errors import ArtifactMismatch, BadInput, MissingExtra, UnsuitableModel
from acclimate.zoo import torchvision_compat
from acclimate.zoo.torchvision_compat import import_torchvision
from tests.cli_models import tiny_cnn
from tests.codes import raises

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

# torchvision ----------------------------------------------------------------------------------


def make_images(size: int = 64) -> torch.Tensor:
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(2))


def test_torchvision_models_take_images_that_are_not_normalised(tmp_path: Path) -> None:
    models = import_torchvision().models
    torch.manual_seed(0)
    plain = models.get_model("squeezenet1_1", num_classes=5).eval()
    torch.save({"state_dict": plain.state_dict()}, tmp_path / "weights.pt")
    model = zoo.load("torchvision:squeezenet1_1", tmp_path / "weights.pt", 5)
    x = make_images()
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in IMAGENET)
    with torch.no_grad():
        got, expected = model(x), plain((x - mean) / std)
    assert not model.training
    assert torch.equal(got, expected)
    with raises("other_weights", ArtifactMismatch) as caught:
        zoo.load("torchvision:squeezenet1_1", tmp_path / "weights.pt", 7)
    names = [line.partition(":")[0] for line in caught.value.differences]
    assert names == ["classifier.1.bias", "classifier.1.weight"]
    assert "(7, 512, 1, 1)" in caught.value.differences[1]


def test_torchvision_weights_come_from_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    models = import_torchvision().models
    state = models.get_model("squeezenet1_1").state_dict()
    asked = []

    def hand_over(address: str, *_: Any, **__: Any) -> Any:
        asked.append(address)
        return state

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", hand_over)
    model = zoo.load("torchvision:squeezenet1_1", n_classes=1000)
    assert asked == [models.get_model_weights("squeezenet1_1").DEFAULT.url]
    assert all(torch.equal(model.state_dict()[f"model.{key}"], state[key]) for key in state)
    with raises("out_of_range", BadInput, option="n_classes", found=10):
        zoo.load("torchvision:squeezenet1_1", n_classes=10)

    def refuse(*_: Any, **__: Any) -> Any:
        raise URLError("no route")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    with raises("weights_unavailable", BadInput, name="torchvision:squeezenet1_1") as caught:
        zoo.load("torchvision:squeezenet1_1")
    assert isinstance(caught.value.__cause__, URLError)


def test_torchvision_names_are_checked() -> None:
    with raises("unknown_name", BadInput, kind="model", name="squeezenet1_2") as caught:
        zoo.build("torchvision:squeezenet1_2")
    assert "squeezenet1_1" in caught.value.known
    with raises("unsupported_model", UnsuitableModel, model="torchvision:raft_small"):
        zoo.build("torchvision:raft_small")


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_without_the_library_the_message_names_the_extra(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with raises("missing_extra", MissingExtra, package=library) as caught:
        zoo.build(f"{library}:squeezenet1_1")
    assert f"pip install 'acclimate[{library}]'" in str(caught.value)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that goes through the door and tells what was declared."""

    def go(*errors: Exception) -> list[str]:
        declared: list[str] = []
        library = SimpleNamespace(define=declared.append)
        left_over = {"torchvision": None, "torchvision.ops": None, "torch": torch}
        left = list(errors)

        def load(name: str, *about: str) -> ModuleType:
            if left:
                raise left.pop(0)
            return ModuleType(name)

        monkeypatch.setattr(torchvision_compat, "import_extra", load)
        monkeypatch.setattr(torchvision_compat, "sys", SimpleNamespace(modules=left_over))
        monkeypatch.setattr(torchvision_compat, "_declared", [])
        monkeypatch.setattr(torch.library, "Library", lambda *_: library)
        assert import_torchvision().__name__ == "torchvision"
        assert ("torchvision" in left_over) == (not declared)
        assert "torch" in left_over
        return declared

    return go


def test_the_door_does_nothing_where_builds_match(door: Callable[..., list[str]]) -> None:
    assert door() == []


def test_the_door_declares_what_the_import_lacks(door: Callable[..., list[str]]) -> None:
    declared = door(RuntimeError("operator torchvision::nms does not exist"))
    assert [schema.split("(")[0] for schema in declared] == ["nms", "qnms"]


def test_the_door_hides_no_other_failure(door: Callable[..., list[str]]) -> None:
    for error in (RuntimeError("out of memory"), ModuleNotFoundError("no PIL", name="PIL")):
        with pytest.raises(type(error)) as caught:
            door(error)
        assert caught.value is error


# timm -------------------------------------------------------------------------------------------


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put a stand-in for timm in its place; return the list of what it is asked to make."""
    asked: list[dict[str, Any]] = []

    def create_model(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
        asked.append({"name": name, "pretrained": pretrained, **options})
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, options.get("num_classes", 1000)))
        known = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.5), "num_classes": 1000}
        model.pretrained_cfg = known  # type: ignore[assignment]
        return model

    module = ModuleType("timm")
    vars(module).update(
        create_model=create_model,
        is_model=lambda name: name.split(".")[0] == "tinynet",
        list_models=lambda: ["tinynet"],
    )
    monkeypatch.setitem(sys.modules, "timm", module)
    return asked


def test_timm_models_are_normalised_as_timm_says(
    timm: list[dict[str, Any]], tmp_path: Path
) -> None:
    model = zoo.load("timm:tinynet.in1k")
    assert timm == [{"name": "tinynet.in1k", "pretrained": True}]
    x = make_images(2)
    by_hand = (x - torch.tensor((0.5, 0.4, 0.3)).view(3, 1, 1)) / torch.tensor(
        (0.2, 0.25, 0.5)
    ).view(3, 1, 1)
    assert torch.equal(model(x), model.get_submodule("model")(by_hand))
    with raises("out_of_range", BadInput, option="n_classes", found=4):
        zoo.load("timm:tinynet", n_classes=4)
    state = {"1.weight": torch.ones(4, 12), "1.bias": torch.arange(4.0)}
    torch.save(state, tmp_path / "weights.pt")
    loaded = zoo.load("timm:tinynet", tmp_path / "weights.pt", 4)
    assert timm[-1] == {"name": "tinynet", "pretrained": False, "num_classes": 4}
    assert torch.equal(loaded.state_dict()["model.1.bias"], state["1.bias"])
    with raises("unknown_name", BadInput, kind="model", name="tinynett", known=("tinynet",)):
        zoo.load("timm:tinynett")


# Functions --------------------------------------------------------------------------------------


def test_a_function_gives_the_model(tmp_path: Path) -> None:
    model = zoo.load("tests.cli_models:tiny_cnn")
    assert not model.training
    state = {name: tensor + 1 for name, tensor in tiny_cnn().state_dict().items()}
    torch.save(state, tmp_path / "weights.pt")
    loaded = zoo.load("tests.cli_models:tiny_cnn", tmp_path / "weights.pt").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    with raises("not_applicable", BadInput, option="n_classes"):
        zoo.load("tests.cli_models:tiny_cnn", n_classes=3)


@pytest.mark.parametrize(
    ("spec", "code", "data"),
    [
        ("tests.cli_models:", "malformed", {"option": "model", "found": "tests.cli_models:"}),
        (":tiny_cnn", "malformed", {"option": "model", "found": ":tiny_cnn"}),
        ("tests.nowhere:tiny", "unknown_name", {"kind": "module", "name": "tests.nowhere"}),
        (
            "tests.cli_models:tiny_cmm",
            "unknown_name",
            {"kind": "function", "name": "tiny_cmm", "known": lambda names: "tiny_cnn" in names},
        ),
        ("tests.cli_models:NUMBER", "wrong_type", {"option": "function", "found": "int"}),
        ("tests.cli_models:not_a_model", "wrong_type", {"option": "model", "found": "str"}),
    ],
)
def test_a_model_that_cannot_be_had_is_refused(spec: str, code: str, data: dict[str, Any]) -> None:
    with raises(code, BadInput, **data):
        zoo.load(spec)


@pytest.mark.parametrize(("name", "kind"), [("needs_argument", TypeError), ("fails", RuntimeError)])
def test_a_function_that_fails_is_told_with_its_own_error(name: str, kind: type[Exception]) -> None:
    spec = f"tests.cli_models:{name}"
    with raises("model_function_failed", BadInput, name=spec) as caught:
        zoo.load(spec)
    assert isinstance(caught.value.__cause__, kind)


def test_the_message_names_the_line_that_failed() -> None:
    with raises("model_function_failed") as caught:
        zoo.load("tests.cli_models:fails")
    assert re.search(r"the licence has expired .*cli_models\.py, line \d+", str(caught.value))


def test_modules_that_fail_are_told_from_modules_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "needy_zoo_models.py").write_text("import not_installed_anywhere")
    with raises("import_failed", BadInput, name="not_installed_anywhere"):
        zoo.load("needy_zoo_models:f")
    (tmp_path / "wrong_zoo_models.py").write_text("1 / 0")
    with raises("import_failed", BadInput, name="wrong_zoo_models") as caught:
        zoo.load("wrong_zoo_models:f")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
