"""Models of timm with their transforms; no weights are downloaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import acclimate
from acclimate import Penalty
from acclimate.errors import BadInput, MissingExtra
from acclimate.integrations import timm as integration
from acclimate.zoo.torchvision_compat import import_library
from tests.codes import raises

library: Any = import_library("timm", "timm")
SMALL = {"num_classes": 4, "pretrained": False}


def make_images(transform: Any, n: int = 8) -> torch.Tensor:
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (80, 90, 3), np.uint8)) for _ in range(n)]
    return torch.stack([transform(picture) for picture in pictures])


@pytest.mark.parametrize("name", ["resnet10t", "test_vit"])
def test_a_model_comes_with_its_transform_and_normalisation(name: str) -> None:
    torch.manual_seed(0)
    loaded = integration.load_timm(name, **SMALL)
    x = make_images(loaded.transform)
    assert x.shape[1:] == loaded.data_config["input_size"]
    source = [(x, torch.arange(8) % 4)]
    parts = [Penalty(n_samples=4), "prototypes"]
    artifact = acclimate.prepare(loaded.model, source, parts=parts, info=loaded.info)
    assert artifact.info.normalization == acclimate.Normalization(
        loaded.data_config["mean"], loaded.data_config["std"]
    )
    adapted = acclimate.adapt(loaded.model, "swr_nsp", artifact)
    assert adapted(x).shape == (8, 4)
    assert adapted.counts.updates == 1


def test_a_model_of_ones_own_and_a_checkpoint_can_be_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = library.create_model("resnet10t", num_classes=4).train()
    loaded = integration.load_timm(model)
    assert loaded.model is model
    assert not model.training
    torch.save(model.state_dict(), tmp_path / "own.pth")
    again = integration.load_timm("resnet10t", checkpoint_path=str(tmp_path / "own.pth"), **SMALL)
    state = again.model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())


def test_unknown_models_and_failed_downloads_are_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises("unknown_name", BadInput, kind="model", name="resnet11t") as caught:
        integration.load_timm("resnet11t")
    assert "resnet10t" in caught.value.known

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no route")

    monkeypatch.setattr(library, "create_model", refuse)
    with raises("weights_unavailable", BadInput, name="resnet10t"):
        integration.load_timm("resnet10t")
    monkeypatch.setitem(sys.modules, "timm", None)
    with raises("missing_extra", MissingExtra, package="timm"):
        integration.load_timm("resnet10t")
