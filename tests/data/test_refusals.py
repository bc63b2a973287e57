"""What data are refused, and when."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from acclimate.data.copies import corrupt_folder
from acclimate.data.corruptor import CopyRequest
from acclimate.data.loading import Preparation
from tests.cli.test_cli import run
from tests.codes import raises
from tests.data.test_loading import make_folder
from tests.images import labelled_batches

MODEL = ("--model", "tests.cli_models:tiny_cnn", "--device", "cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "photos"
    for name in ("dawn", "dusk"):
        make_folder(root / name)
    return root


def test_a_source_is_checked_before_the_model_is_loaded(tmp_path):
    with raises("unknown_name", kind="source data set", name="nowhere"):
        Preparation(source="nowhere")
    with raises("out_of_range", option="source_images", found=0):
        Preparation(source="builtin", n=0)
    with raises("not_applicable", option="source_images"):
        Preparation(source=str(tmp_path), n=5)


def test_a_domain_may_have_images_of_one_known_class(photos, tmp_path):
    root = shutil.copytree(photos, tmp_path / "photos")
    for name in ("dog", "eel", "fox"):
        shutil.rmtree(root / "dusk" / name)
    result = run("eval", *MODEL, "--data", root, "--method", "source", "--out", tmp_path / "out")
    assert "15 samples in all" in result.stdout
    assert labelled_batches(root / "dusk", classes=["fox", "cat"]).classes == ("fox", "cat")
    with raises("too_few_classes", expected=2, found=1):
        labelled_batches(root / "dusk")


def test_nothing_to_corrupt_is_an_error(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(2):
        (photos / f"{number}.png").write_bytes(b"no image")
    with raises("unreadable_images", paths=lambda paths: paths[0] == photos / "0.png"):
        corrupt_folder(photos, tmp_path / "out", CopyRequest(["brightness"], [1]))
    Image.new("RGB", (32, 32)).save(photos / "good.png")
    (tmp_path / "out" / "generated.json").unlink()
    counts = corrupt_folder(photos, tmp_path / "out", CopyRequest(["brightness"], [1]))
    assert counts.n_written == 1
    assert set(counts.unreadable.values()) == {"its header is damaged"}
