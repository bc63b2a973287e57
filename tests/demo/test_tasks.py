"""The demonstration on other data than its own, without fetching any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from acclimate.builtin import load_model
from acclimate.builtin import render as render_toys
from acclimate.cli.main import app
from acclimate.data import SETS
from acclimate.data.arrays import array_sha256, write_array, write_card
from acclimate.demo import TASKS, DemoSettings, fetch_data, run_demo
from acclimate.report import render_demo
from tests.codes import raises
from tests.demo.predictions import predict_clearly

SETTINGS = DemoSettings(
    data="cifar10",
    methods=("source", "norm"),
    corruptions=("contrast",),
    images=24,
    batch_size=12,
    n_source=32,
    n_penalty=16,
)


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A set on disk in the place and shape of CIFAR-10, of toys."""
    splits, kept = {}, {}
    for seed, split in enumerate(("train", "test")):
        images, labels = render_toys(40, 50 + seed)
        folder = tmp_path / "cifar10" / split
        folder.mkdir(parents=True)
        write_array(folder / "images.npy", images)
        write_array(folder / "labels.npy", labels)
        splits[split] = {"n": 40, "sha256": array_sha256(images)}
        kept[split] = images
        kept[f"{split} labels"] = labels
    write_card(tmp_path / "cifar10", {"source": "official", "splits": splits})
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path))
    return kept


def test_the_demo_speaks_of_its_own_data(photographs):
    known = TASKS["cifar10"].models[0]
    task = replace(TASKS["cifar10"], models=(replace(known, load=load_model),))
    result = run_demo(SETTINGS, task=task)
    x = torch.from_numpy(photographs["test"][:24]).permute(0, 3, 1, 2) / 255
    predicted = predict_clearly(load_model(), x).numpy()
    assert result.clean_error == (predicted != photographs["test labels"][:24]).mean()
    assert {sample.truth for sample in result.samples} <= set(SETS["cifar10"].classes)
    page = render_demo(result.page())
    assert TASKS["cifar10"].text in page
    assert known.text in page
    assert "toys" not in page
    assert array_sha256(photographs["test"]) in page
    assert "acclimate demo --data cifar10 --methods source,norm" in page
    with raises("out_of_range", option="images", found=41):  # the test split has 40
        run_demo(replace(SETTINGS, images=41), task=task)


def test_what_is_on_disk_is_not_fetched(photographs, monkeypatch):
    monkeypatch.setattr("acclimate.demo.tasks.get", lambda *_, **__: pytest.fail("it fetched"))
    fetch_data("cifar10")
    fetch_data("builtin")


def test_what_is_not_on_disk_is_fetched_after_saying_so(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path))
    said, fetched = [], []
    monkeypatch.setattr("acclimate.demo.tasks.get", lambda name, **_: fetched.append(name))
    fetch_data("cifar10", notify=said.append)
    assert fetched == ["cifar10"]
    assert said == [f"cifar10 is not in {tmp_path}: fetching it once (170 MB) …"]


def test_the_command_passes_the_data_and_all_methods_on(monkeypatch, tmp_path):
    class Enough(Exception):
        pass

    asked = []

    def run(settings, progress):
        asked.append(settings)
        raise Enough

    monkeypatch.setattr("acclimate.demo.run_demo", run)
    monkeypatch.setattr("acclimate.demo.fetch_data", lambda name, *_: asked.append(name))
    words = ["demo", "--data", "cifar10", "--methods", "all", "--out", str(tmp_path / "page.html")]
    with pytest.raises(Enough):
        CliRunner().invoke(app, words, catch_exceptions=False)
    name, settings = asked
    assert name == settings.data == "cifar10"
    assert {"source", "norm", "tent", "swr_nsp"} <= set(settings.methods)
    with raises("unknown_name", kind="data set", name="cifar1", known=("builtin", "cifar10")):
        DemoSettings(data="cifar1")
