"""`acclimate export`: files that need no acclimate, and their card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from acclimate.export import FORMATS
from tests.cli.test_cli import MODEL, make_images, run
from tests.cli_models import tiny_cnn
from tests.codes import raises

NAMED = MODEL[:2]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "photos"
    make_images(folder, 12)
    return folder


def adapt_folder(photos: Path, folder: Path, statistics: str) -> Path:
    state = folder / "tiny.state"
    line = ("adapt", photos, *MODEL, "--method", "tent", "--set", f"statistics={statistics}")
    run(*line, "--batch-size", "6", "--state", state, "--out", folder / "out.csv")
    return state


def test_all_formats_and_a_card(photos: Path, tmp_path: Path) -> None:
    state, out = adapt_folder(photos, tmp_path, "source"), tmp_path / "tiny-adapted"
    line = ("export", *NAMED, "--state", state, "--out", out)
    result = run(*line, "--images", photos)
    card = json.loads((tmp_path / "tiny-adapted.json").read_text())
    assert set(card["files"]) == {f"tiny-adapted{each.suffix}" for each in FORMATS.values()}
    assert card["differences"]["max_abs_logit"] <= 1e-5
    assert card["counts"]["batches"] == 2
    assert card["input_shape"] == [3, 8, 8]
    assert "the class agrees on 100.00 % of 12 images" in result.stdout
    plain = tiny_cnn()
    plain.load_state_dict(load_file(tmp_path / "tiny-adapted.safetensors"))
    x = torch.rand(5, 3, 8, 8)
    scripted = torch.jit.load(tmp_path / "tiny-adapted.torchscript.pt")
    torch.testing.assert_close(scripted(x), plain(x), rtol=0, atol=1e-5)
    assert not torch.allclose(plain(x), tiny_cnn()(x), atol=1e-5)
    with raises("already_exists"):
        run(*line)
    run(*line, "--force", "--format", "pt2")


def test_batch_statistics_need_images_and_the_difference_is_printed(
    photos: Path, tmp_path: Path
) -> None:
    state, out = adapt_folder(photos, tmp_path, "batch"), tmp_path / "tiny"
    line = ("export", *NAMED, "--state", state, "--out", out, "--format", "safetensors")
    with raises("missing_option", option="probe"):
        run(*line)
    result = run(*line, "--images", photos, "--batch-size", "6")
    card = json.loads((tmp_path / "tiny.json").read_text())
    largest = card["differences"]["max_abs_logit"]
    assert largest > 1e-5  # pooled over two batches, of which each has its own statistics
    assert f"logits differ by up to {largest:.3g}" in result.stdout
    assert card["statistics"]["kind"] == "batch"


def test_refusals(photos: Path, tmp_path: Path) -> None:
    state = adapt_folder(photos, tmp_path, "source")
    line = ("export", *NAMED, "--state", state, "--out")
    with raises("unknown_name", kind="format", name="onyx"):
        run(*line, tmp_path / "tiny", "--format", "onyx")
    with raises("not_found"):
        run(*line, tmp_path / "absent" / "tiny")
