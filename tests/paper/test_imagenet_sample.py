"""The sample of ImageNet is split so that class numbers stay what they are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from acclimate.data.loading import load_data
from acclimate.data.request import Request
from acclimate.paper import EXPERIMENTS, Settings, imagenet_sample
from acclimate.paper.efficientnet import FromUnitRange, efficientnet_lite0
from tests.codes import raises
from tests.images import write_images

NAMES = [f"n{number:04d}" for number in range(6)]


@pytest.fixture(autouse=True)
def few_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet_sample, "N_CLASSES", len(NAMES))


def test_halves_share_nothing_and_keep_the_numbers(tmp_path: Path) -> None:
    images = write_images(tmp_path / "all", dict.fromkeys(NAMES, 1))
    source, target = imagenet_sample.split_sample(images, tmp_path / "out")
    there = [{path.parent.name for path in half.glob("*/*")} for half in (source, target)]
    assert there == [set(NAMES[::2]), set(NAMES[1::2])]
    corrupted = tmp_path / "corrupted"
    for path in target.glob("*/*"):
        place = corrupted / "fog" / "5" / path.parent.name
        place.mkdir(parents=True)
        (place / path.name).write_bytes(path.read_bytes())
    with raises("count_mismatch", expected=6, found=3):
        imagenet_sample.check_corrupted(corrupted)
    imagenet_sample.complete_classes(corrupted, target)
    imagenet_sample.check_corrupted(corrupted)
    data = load_data(str(corrupted), Request())
    assert list(data.classes) == NAMES
    assert data.domains[0].y.tolist() == [1, 3, 5]


def test_an_experiment_refuses_wrong_numbers(tmp_path: Path) -> None:
    for name in NAMES[1::2]:
        (tmp_path / "fog" / "5" / name).mkdir(parents=True)
    given = {"imagenetc": str(tmp_path)}
    with raises("count_mismatch", expected=6, found=3):
        EXPERIMENTS["table-s6a"].suite("small", (0,), Settings(data=given, sources=given))
    imagenet_sample.complete_classes(tmp_path, tmp_path / "fog" / "5")
    for name in NAMES:
        (tmp_path / "fog" / "5" / name).mkdir(exist_ok=True)
    suite = EXPERIMENTS["table-s6a"].suite("small", (0,), Settings(data=given, sources=given))
    (ours,) = [entry.spec for entry in suite.entries if entry.label == "Ours"]
    assert (ours.data, ours.prepare.source) == (str(tmp_path), str(tmp_path))
    assert ours.prepare.parts["prototypes"]["source"] == "classifier"
    assert ours.prepare.parts["penalty"]["n_samples"] == 500


def test_incomplete_samples_are_refused(tmp_path: Path) -> None:
    root = write_images(tmp_path / "all", dict.fromkeys(NAMES[1:], 1))
    with raises("count_mismatch", expected=6, found=5):
        imagenet_sample.split_sample(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_inputs_are_scaled_as_the_model_was_trained() -> None:
    import torch

    model = FromUnitRange(torch.nn.Identity())
    x = torch.tensor([0.0, 127 / 255, 1.0])
    torch.testing.assert_close(model(x), torch.tensor([-127 / 128, 0.0, 1.0]))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with raises("missing_extra", package="efficientnet-lite-pytorch"):
        efficientnet_lite0()
