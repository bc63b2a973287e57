"""Models to begin with: those of timm, and DomainBed's own of torchvision."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from acclimate import zoo
from acclimate.storage import read_file
from acclimate.training import train
from acclimate.training.domains import task as model_module
from acclimate.training.domains.task import build_model, full_name
from acclimate.zoo.external import NormalizedModel
from acclimate.zoo.named import load_trained
from tests.cli_models import CLASSES
from tests.codes import raises
from tests.training.domains.samples import make_set, make_settings


def make_net(n_classes: int = 1000) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, n_classes),
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put a stand-in for timm in its place; return the list of what it is asked to make."""
    calls: list[dict[str, Any]] = []

    def create_model(name: str, pretrained: bool, num_classes: int = 1000) -> nn.Module:
        calls.append({"name": name, "pretrained": pretrained, "n": num_classes})
        model = make_net(num_classes)
        model.pretrained_cfg = {  # type: ignore[assignment]
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
            "num_classes": 1000,
        }
        if pretrained:
            nn.init.constant_(model[0].weight, 0.125)  # type: ignore[arg-type]
        return model

    module = ModuleType("timm")
    module.__spec__ = ModuleSpec("timm", None)  # which transformers reads
    module.create_model = create_model  # type: ignore[attr-defined]
    module.is_model = lambda name: name == "tinynet"  # type: ignore[attr-defined]
    module.list_models = lambda: ["tinynet"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", module)
    return calls


def test_a_model_of_timm_begins_with_its_published_weights(
    asked: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    settings = make_settings(model="timm:tinynet", pretrained=True, lr=1e-12)
    train(settings, out, device="cpu", data=make_set())
    assert asked == [{"name": "tinynet", "pretrained": True, "n": 1000}]
    tensors, card = read_file(out, "zoo")
    assert torch.allclose(tensors["0.weight"], torch.tensor(0.125))
    assert tensors["4.weight"].shape == (len(CLASSES), 4)
    assert (card["name"], card["n_classes"]) == ("timm:tinynet", len(CLASSES))
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        logits = load_trained(out)(x)
        # The file goes wherever weights are asked for.
        assert torch.equal(zoo.load("timm:tinynet", out)(x), logits)
    assert logits.shape == (2, len(CLASSES))
    fresh = make_settings(model="timm:tinynet", steps=1)
    train(fresh, tmp_path / "fresh.safetensors", device="cpu", data=make_set())
    assert asked[-1] == {"name": "tinynet", "pretrained": False, "n": len(CLASSES)}
    unknown = make_settings(model="timm:tinynt")
    with raises("unknown_name", kind="model", name="tinynt", known=("tinynet",)):
        train(unknown, tmp_path / "no.safetensors", device="cpu", data=make_set())


class Weights(dict[str, Any]):
    """Stands for torchvision's list of the weights of a model."""


FIRST = SimpleNamespace(
    url="https://example.org/v1.pth",
    transforms=lambda: SimpleNamespace(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
)


def replace_torchvision(
    monkeypatch: pytest.MonkeyPatch, get_model: Callable[[str, Any], nn.Module]
) -> None:
    """Put a function in the place of the one by which torchvision gives models."""
    models = SimpleNamespace(
        get_model_weights=lambda name: Weights(IMAGENET1K_V1=FIRST, IMAGENET1K_V2=None),
        get_model=lambda name, weights: get_model(name, weights),
    )
    door = SimpleNamespace(models=models)
    monkeypatch.setattr(model_module, "import_torchvision", lambda: door)


def test_resnet50_is_that_of_domainbed(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []

    def get_model(name: str, weights: Any) -> nn.Module:
        taken.append((name, weights))
        return make_net()

    replace_torchvision(monkeypatch, get_model)
    settings = make_settings(model="resnet50", pretrained=True)
    model, head = build_model(settings, torch.rand(2, 3, 8, 8), 4)
    assert taken == [("resnet50", FIRST)]
    assert isinstance(model, NormalizedModel)
    assert model.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert head == "model.4"
    assert model(torch.rand(2, 3, 8, 8)).shape == (2, 4)
    assert full_name("resnet50") == "torchvision:resnet50"


def test_the_message_names_the_address_of_weights_that_cannot_be_downloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def get_model(name: str, weights: Any) -> nn.Module:
        raise OSError("no route to host")

    replace_torchvision(monkeypatch, get_model)
    settings = make_settings(model="resnet50", pretrained=True)
    with raises("weights_unavailable", name="resnet50") as caught:
        build_model(settings, torch.rand(2, 3, 8, 8), 4)
    assert FIRST.url in str(caught.value)
    assert "--weights" in str(caught.value)


def test_a_model_without_a_linear_head_is_refused() -> None:
    settings = make_settings(model="tests.training.domains.test_models:make_convolutional")
    with raises("head_not_found", candidates=()):
        build_model(settings, torch.rand(2, 3, 8, 8), 4)
    two = make_settings(model="tests.cli_models:two_outputs")
    with raises("unsupported_model", model="tests.cli_models:two_outputs"):
        build_model(two, torch.rand(2, 3, 8, 8), 4)


def make_convolutional() -> nn.Module:
    """Return a classifier whose last layer is a convolution."""
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
