"""A data set of a user's own, as docs/data.md shows it; and one signature for all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import acclimate
from acclimate import data
from acclimate.cli.main import app
from acclimate.data.loading import Preparation, load_data
from acclimate.data.request import Request
from tests.codes import raises
from tests.paths import ROOT


@pytest.fixture
def stripes(monkeypatch: pytest.MonkeyPatch) -> Iterator[data.DataSet]:
    """Run the blocks of docs/data.md; the data set is removed at the end."""
    monkeypatch.setattr("acclimate.data.datasets.SETS", data.SETS)
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "data.md").read_text(), re.S):
        exec(compile(block, "docs/data.md", "exec"), {"__name__": "docs"})
    yield data.SETS["stripes"]
    del data.SETS["stripes"]


def test_a_registered_set_is_opened_listed_and_checked(stripes: data.DataSet) -> None:
    store = data.load("stripes", n=6)
    assert isinstance(store, data.ArrayStore)
    assert store[[1, 2]].shape == (2, 32, 32, 3)
    assert data.find_state("stripes") == "made by code"
    assert data.check("stripes").problems == []
    result = CliRunner().invoke(app, ["data", "list"], env={"COLUMNS": "120"})
    assert "noise with stripes" in result.stdout
    with raises("unknown_option", option="size", known=("n",)):
        data.load("stripes", size=8)
    with raises("not_fetchable", name="stripes"):
        data.get("stripes")
    with raises("duplicate", name="stripes"):
        data.register(stripes)


def test_a_registered_set_is_measured_corrupted_and_prepared_from(stripes: data.DataSet) -> None:
    measured = load_data("stripes", Request(corruptions=("fog",), severities=(1, 5), n=12))
    assert [domain.name for domain in measured.domains] == ["fog_1", "fog_5"]
    assert measured.descriptions["fog_5"]["source"] == "generated"
    assert measured.source == "stripes"
    assert len(measured.clean()) == 12
    batches, classes = Preparation(source="stripes", n=40, seed=1).open()
    assert tuple(classes) == ("plain", "striped")
    first, again = ([y.tolist() for _, y in batches] for _ in range(2))
    assert first == again
    assert sum(map(len, first)) == 40


def test_a_registered_set_is_corrupted_on_disk(stripes: data.DataSet, tmp_path: Path) -> None:
    with raises("missing_option", option="out"):
        data.corrupt("stripes", ["contrast"])
    folder = data.corrupt("stripes", ["contrast"], [3], out=tmp_path / "out")
    array = np.load(folder / "contrast.npy", mmap_mode="r")
    assert array.shape == (500, 32, 32, 3)


def test_a_store_of_an_array_and_one_of_files_are_the_same(tmp_path: Path) -> None:
    from PIL import Image

    array = data.load("builtin", n=12)
    for index, (image, label) in enumerate(zip(array[:], array.labels, strict=True)):
        path = tmp_path / "photos" / array.classes[label] / f"{index:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    for name in array.classes:
        (tmp_path / "photos" / name).mkdir(exist_ok=True)
    files = data.open_folder(tmp_path / "photos", classes=array.classes)
    order = [int(path.stem) for path in files.paths]
    own = array.select(order)
    assert files.labels.tolist() == own.labels.tolist()
    keys = [7, 0, 3]
    assert np.array_equal(files[keys], own[keys])
    for store in (files.select(keys), own.select(keys)):
        assert store.description["n"] == len(store) == 3
        assert store.readable() == [0, 1, 2]
        assert len(store.digest()) == 64
    left, right = (next(store.batches([keys])) for store in (files, own))
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
    for a, b in zip(data.Batches(files, 5, 3), data.Batches(own, 5, 3), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_every_shipped_file_of_weights_has_a_notice() -> None:
    package = Path(acclimate.__file__).parent
    files = [*package.rglob("*.safetensors"), *package.rglob("*.acclimate")]
    assert len(files) >= 7
    for path in files:
        assert path.name in (path.parent / "NOTICE").read_text()
