"""The command line on images with masks: prepare and adapt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import acclimate
from acclimate.artifact import Artifact
from acclimate.cli.main import app
from acclimate.comparison.masks import MaskSource
from acclimate.data.masks import load_masks
from acclimate.errors import BadInput
from acclimate.testing.dense_models import TinyDeepLab
from tests.segmentation.samples import make_folder

FOUR = "one\ntwo\nthree\nfour\n"
MODEL = ("--model", "tests.segmentation.test_cli_masks:tiny_net", "--device", "cpu")


def tiny_net() -> TinyDeepLab:
    """Return a net with four classes that looks trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TinyDeepLab().eval()


def run(*arguments: str | Path) -> Result:
    """Run a command in this process; a failure is the error itself."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(part) for part in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    base = make_folder(tmp_path / "mine", ("train", "val", "test"), n=5)
    (base / "classes.txt").write_text(FOUR)
    return base


def test_prepare_takes_masks_where_there_are_some(pairs: Path, tmp_path: Path) -> None:
    """The artifact is that of the library on the split train."""
    out = tmp_path / "net.acclimate"
    result = run("prepare", pairs, *MODEL, "--out", out, "--samples", "5", "--seed", "3")
    assert "5 images, of whose labelled pixels" in result.output
    assert "--out predictions\n" in result.output
    source = MaskSource(load_masks(str(pairs), "train"), 3)
    expected = acclimate.prepare(
        tiny_net(),
        source,
        penalty=acclimate.PenaltyOptions(n_samples=5),
        classes=FOUR.split(),
        seed=3,
    )
    found = Artifact.load(out)
    assert found.classes == FOUR.split()
    assert found.card["input_shape"] == [3, 16, 24]
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor)


def test_prepare_takes_sets_with_masks_by_name(tmp_path: Path) -> None:
    out = tmp_path / "scenes.acclimate"
    scenes = ("builtin-scenes", "--model", "builtin-scenes", "--device", "cpu")
    run("prepare", *scenes, "--out", out, "--samples", "4", "--method", "swr")
    assert Artifact.load(out).parts["features"]["n_samples"] == 100
    with pytest.raises(BadInput, match="expected a batch size of at least 1"):
        run("prepare", *scenes, "--out", tmp_path / "b", "--batch-size", "0")
