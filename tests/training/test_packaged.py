"""The weights that come with the package."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from acclimate import zoo
from acclimate.data import ArrayStore, load
from acclimate.errors import BadInput
from acclimate.storage import read_file
from acclimate.training import TrainSettings
from acclimate.zoo.readers import content_digest
from tests.codes import check_coded

NAMES = [name for name in zoo.list_models() if zoo.get_spec(name).packaged]


@pytest.fixture(autouse=True)
def no_imported_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("acclimate.zoo.data_root", lambda root=None: tmp_path)


@pytest.fixture(scope="module")
def photographs() -> ArrayStore:
    try:
        return load("cifar10")
    except BadInput as error:
        check_coded(error, "not_fetched", name="cifar10")
        pytest.skip("CIFAR-10 is not on this machine: acclimate data get cifar10")


def test_there_is_one() -> None:
    assert NAMES == ["resnet9-cifar10"]


@pytest.mark.parametrize("name", NAMES)
def test_packaged_weights_are_the_known_ones_and_small(name: str) -> None:
    spec, path = zoo.get_spec(name), zoo.weights_path(name)
    assert path.parent.name == "weights"
    assert path.stat().st_size <= 1_500_000
    model = zoo.load(name)  # without a warning
    assert content_digest(model) == spec.content_sha256
    assert isinstance(model.head, nn.Linear)
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert zoo.download(name) == path


@pytest.mark.parametrize("name", NAMES)
def test_the_card_says_how_they_were_made(name: str) -> None:
    spec = zoo.get_spec(name)
    _, card = read_file(zoo.weights_path(name), "zoo")
    made = card["training"]
    assert card["name"] == name
    settings = TrainSettings(**made["settings"])
    assert settings.command == made["command"]
    assert made["command"] in " ".join(spec.description.split())
    assert made["data"]["name"] == "cifar10"
    assert made["data"]["n"] == 50_000
    assert spec.accuracy == pytest.approx(100 - made["test_error_percent"], abs=0.005)


@pytest.mark.parametrize("name", NAMES)
def test_an_imported_file_comes_before_the_packaged_one(name: str, tmp_path: Path) -> None:
    packaged = zoo.weights_path(name)
    imported = zoo.import_checkpoint(name, packaged)
    assert imported.is_relative_to(tmp_path)
    assert zoo.weights_path(name) == imported
    first, second = zoo.load(name, packaged), zoo.load(name)
    assert content_digest(first) == content_digest(second)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_stated_error_holds(name: str, photographs: ArrayStore) -> None:
    model = zoo.load(name).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    n_right = 0
    with torch.inference_mode():
        for start in range(0, len(photographs), 500):
            part = slice(start, start + 500)
            x = torch.tensor(photographs.images[part]).permute(0, 3, 1, 2).float() / 255
            n_right += int((model(x).argmax(1) == torch.tensor(photographs.labels[part])).sum())
    # Another processor sums in another order, which moves logits by 1e-5. No image has two highest
    # logits that are nearer than 1e-3, so that none should change sides; three may.
    assert 100 * n_right / len(photographs) == pytest.approx(zoo.get_spec(name).accuracy, abs=0.03)
