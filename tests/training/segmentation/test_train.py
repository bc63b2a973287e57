"""Training for segmentation: what is written, resumed, measured and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from typer.testing import CliRunner

from acclimate.cli.main import app
from acclimate.data import load
from acclimate.errors import BadInput, InvalidConfig
from acclimate.functional.pixels import count_pixels, find_ious
from acclimate.storage import read_file
from acclimate.training import SegmentationSettings, train
from acclimate.training.checkpoint import log_path, run_folder
from acclimate.training.segmentation import crop_and_flip, pixel_cross_entropy
from acclimate.zoo.named import load_named
from acclimate.zoo.segmentation import load_dense, whitening_layers
from tests.codes import check_coded, raises
from tests.segmentation.samples import about, make_folder
from tests.training.samples import Cut, assert_same, cut_after

CPU: dict[str, Any] = {"device": "cpu"}


def make_settings(**options: Any) -> SegmentationSettings:
    usual: dict[str, Any] = {
        "model": "builtin-scenes",
        "data": "builtin-scenes",
        "images": 16,
        "epochs": 3,
        "batch_size": 8,
        "crop_height": 32,
        "crop_width": 32,
    }
    return SegmentationSettings(**{**usual, **options})


def slow_miou(predicted: np.ndarray, labels: np.ndarray, n_classes: int) -> list[float]:
    """Intersection over union of each class by counting pixels with sets."""
    ious = []
    counted = labels != 255
    for number in range(n_classes):
        given = set(np.flatnonzero((predicted == number) & counted).tolist())
        true = set(np.flatnonzero((labels == number) & counted).tolist())
        ious.append(len(given & true) / len(given | true) if given | true else float("nan"))
    return ious


def test_ious_equal_the_oracle() -> None:
    draws = np.random.default_rng(0)
    labels = draws.choice([0, 1, 3, 255], (4, 9, 7))
    predicted = draws.integers(0, 4, (4, 9, 7))
    total = sum(
        count_pixels(torch.tensor(predicted[part]), torch.tensor(labels[part]), 5)
        for part in ([0], [1, 2, 3])
    )
    expected = slow_miou(predicted.ravel(), labels.ravel(), 5)
    assert isinstance(total, torch.Tensor)
    assert np.allclose(find_ious(total).numpy(), expected, rtol=1e-12, equal_nan=True)
    assert np.isnan(expected[4])
    assert int(total.sum()) == int((labels != 255).sum())


def test_cross_entropy_skips_what_is_ignored() -> None:
    draws = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 4, generator=draws)
    y = torch.randint(3, (2, 8, 8), generator=draws)
    y[0, :5] = 255
    large = F.interpolate(logits.double(), (8, 8), mode="bilinear", align_corners=False)
    losses = [
        -float(large[n, :, row, column].log_softmax(0)[int(y[n, row, column])])
        for n in range(2)
        for row in range(8)
        for column in range(8)
        if y[n, row, column] != 255
    ]
    # It adds up in single precision: at most 6e-8 for each of the losses.
    bound = 6e-8 * len(losses)
    assert float(pixel_cross_entropy(logits, y)) == pytest.approx(sum(losses) / len(losses), bound)
    nothing = torch.full_like(y, 255)
    assert pixel_cross_entropy(logits.requires_grad_(), nothing).item() == 0


def test_crops_keep_images_and_labels_together() -> None:
    """Each pixel's colour says where it is; so does its label."""
    height, width = 20, 30
    labels = torch.arange(height * width).view(1, height, width) % 251
    x = (labels.float() / 255)[:, None].expand(6, 3, height, width)
    y = labels.expand(6, height, width)
    draws = torch.Generator().manual_seed(0)
    images, found = crop_and_flip(x, y, (20, 30), (1.0, 1.0), draws)
    flipped = 0
    for image, own in zip(images, found, strict=True):
        assert torch.equal((image[0] * 255).round().long(), own)
        assert torch.equal(own, labels[0]) or torch.equal(own, labels[0].flip(1))
        flipped += torch.equal(own, labels[0].flip(1))
    assert 0 < flipped < 6
    images, found = crop_and_flip(x, y, (20, 30), (0.5, 0.5), draws)
    for image, own in zip(images, found, strict=True):
        outside = own == 255
        assert 0.7 < float(outside.float().mean()) < 0.8
        assert (image[0][outside] < 0.5).all()
    _, found = crop_and_flip(x, y, (10, 16), (2.0, 2.0), draws)
    assert (found != 255).all()
    assert all(len(own.unique()) <= (5 + 1) * (8 + 1) for own in found)


@pytest.mark.slow
def test_it_learns_and_the_file_says_how(tmp_path: Path) -> None:
    out = tmp_path / "scenes.safetensors"
    settings = make_settings(images=32, epochs=6, lr=0.01, check_every=4)
    result = train(settings, out, **CPU)
    assert result.losses[-1] < 0.6 * result.losses[0]
    model, held = load_dense(out), load("builtin-scenes", "val")
    x, y = next(held.batches([torch.arange(len(held))]))
    with torch.no_grad():
        logits = F.interpolate(model(x.float() / 255), y.shape[1:], mode="bilinear")
    expected = slow_miou(logits.argmax(1).numpy().ravel(), y.numpy().ravel(), 5)
    # All images at once are rounded differently from four at a time: of the 300,000 pixels a few
    # that are between two classes may change, and each moves these figures by 0.001 or less.
    assert result.miou == pytest.approx(100 * float(np.mean(expected)), abs=0.02)
    assert result.ious["table"] == pytest.approx(100 * expected[0], abs=0.02)
    _, card = read_file(out, "zoo")
    assert card["training"]["command"] == settings.command
    assert card["training"]["classes"] == list(held.classes)
    lines = [json.loads(line) for line in log_path(out).read_text().splitlines()]
    assert [("miou" in line) for line in lines] == [False, False, False, True, False, True]
    named = load_named("builtin-scenes", out)
    assert torch.equal(named(x[:1].float() / 255), model(x[:1].float() / 255))
    again = train(settings, out, resume=True, **CPU)
    assert again.was_done
    assert again.sha256 == result.sha256


WHITENED = make_settings(objective="isw", isw_warmup_epochs=1)


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of a run that was not interrupted."""
    out = tmp_path_factory.mktemp("uncut") / "whole.safetensors"
    train(WHITENED, out, **CPU)
    return out


@pytest.mark.parametrize(
    "n_steps", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(5, marks=pytest.mark.slow)]
)
def test_a_run_that_was_cut_ends_at_the_same_bytes(
    tmp_path: Path, n_steps: int, uncut: Path
) -> None:
    """Also when it is cut before, at and after the choice of the pairs, in the second epoch."""
    out = tmp_path / "cut.safetensors"
    with pytest.raises(Cut):
        train(WHITENED, out, save_every=1, progress=cut_after(n_steps), **CPU)
    assert run_folder(out).path.exists()
    train(WHITENED, out, resume=True, **CPU)
    assert not run_folder(out).path.exists()
    assert_same(uncut, out)


def test_whitening_begins_after_its_warmup_and_lowers_what_it_measures(tmp_path: Path) -> None:
    """Compared with a run in which it weighs nothing, as each batch is drawn anew in both."""
    penalties = []
    for weight in (50.0, 0.0):
        out = tmp_path / f"{weight}.safetensors"
        options = {"images": 8, "epochs": 4, "lr": 0.02, "isw_weight": weight}
        train(make_settings(objective="isw", isw_warmup_epochs=1, **options), out, **CPU)
        lines = log_path(out).read_text().splitlines()
        penalties.append([json.loads(line)["penalty"] for line in lines])
        assert list(whitening_layers(load_dense(out))) == ["stem.1"]
    whitened, plain = penalties
    assert whitened[0] == plain[0] == 0
    assert whitened[1] == plain[1] > 0  # measured before the first step that it weighs in
    assert whitened[2] < plain[2]
    assert whitened[3] < 0.9 * plain[3]


def test_bad_masks_are_found_before_the_first_step(tmp_path: Path) -> None:
    base = make_folder(tmp_path / "mine", ("train", "val"))
    mask = base / "train" / "masks" / "a" / "1.png"
    values = np.array(Image.open(mask))
    values[0, 0] = 9
    Image.fromarray(values).save(mask)
    out = tmp_path / "out.safetensors"
    with raises("faulty_data", faults=about([mask], "1 pixels", "9")):
        train(make_settings(data=str(base), images=None), out, **CPU)
    assert list(tmp_path.glob("out*")) == []


def test_settings_are_checked() -> None:
    for option, found in (
        ("epochs", 0),
        ("lr", 0.0),
        ("isw_clusters", 1),
        ("precision", "64"),
    ):
        expected = {"problems": lambda problems, option=option: set(problems) == {option}}
        with raises("invalid_options", InvalidConfig, **expected):
            make_settings(**{option: found})
    for option, found, others in (
        ("isw_warmup_epochs", 3, {"objective": "isw", "epochs": 3}),
        ("largest_scale", 0.5, {}),
        ("batch_size", 3, {"devices": 2}),
    ):
        with raises("out_of_range", InvalidConfig, option=option, found=found):
            make_settings(**{option: found}, **others)
    near = {"name": "camvit", "known": lambda names: "camvid" in names}
    with raises("unknown_name", BadInput, kind="data set", **near):
        make_settings(data="camvit")


def test_models_without_a_logit_a_pixel_are_refused(tmp_path: Path) -> None:
    settings = make_settings(model="tests.cli_models:tiny_cnn")
    with raises("wrong_logits", found=(2, 4)):
        train(settings, tmp_path / "out.safetensors", **CPU)


def test_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    words = ["train", *make_settings(epochs=1).command.split()[2:], "--out", str(out)]
    result = CliRunner().invoke(app, [*words, "--device", "cpu"])
    assert result.exit_code == 0, result.output
    _, card = read_file(out, "zoo")
    assert f"{card['training']['miou']:.2f} %" in result.stdout
    assert "SHA-256" in result.stdout
    refused = CliRunner().invoke(app, [*words, "--momentum", "0.5", "--force"])
    assert isinstance(refused.exception, BadInput)
    check_coded(refused.exception, "not_applicable", option="momentum")
    refused = CliRunner().invoke(app, [*words, "--task", "segmentaton", "--force"])
    assert isinstance(refused.exception, BadInput)
    known = ("classification", "domains", "segmentation")
    check_coded(refused.exception, "unknown_name", kind="task", name="segmentaton", known=known)
    alone = [
        "train",
        "--model",
        "resnet20",
        "--data",
        "cifar10",
        "--isw-weight",
        "1",
        "--out",
        str(out),
    ]
    refused = CliRunner().invoke(app, alone)
    check_coded(refused.exception, "not_applicable", option="isw_weight")


@pytest.mark.parametrize("splits", [("train",), ("",)])
def test_the_message_says_which_splits_training_found_and_where_to_put_the_others(
    splits: tuple[str, ...], tmp_path: Path
) -> None:
    base = make_folder(tmp_path / "mine", splits)
    with raises("wrong_layout", path=base) as caught:
        train(make_settings(data=str(base)), tmp_path / "out.safetensors", **CPU)
    assert f"found {splits[0] or 'no splits'}." in str(caught.value)
    for place in ("train", "val/images", "val/masks"):
        assert str(base / place) in str(caught.value)
