"""`acclimate train` on the command line."""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner, Result

from acclimate.cli.main import app
from acclimate.data import open_folder
from acclimate.errors import BadInput, InvalidConfig
from acclimate.functional.augmix import shift_and_flip
from acclimate.functional.rng import generator_at, seed_of
from acclimate.storage import read_file
from acclimate.training import TrainResult, TrainSettings
from acclimate.training.trainer import batch_order
from tests.cli_models import tiny_cnn
from tests.codes import check_coded
from tests.paths import ROOT
from tests.training.samples import make_photos, make_settings


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["train", *words])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos")


def words_of(settings: TrainSettings) -> list[str]:
    return shlex.split(settings.command)[2:]


def test_it_trains_says_what_came_out_and_does_nothing_twice(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    settings = make_settings(photos, epochs=2)
    words = [*words_of(settings), "--out", str(out), "--device", "cpu"]
    result = run(*words)
    assert result.exit_code == 0, result.output
    _, card = read_file(out, "zoo")
    error, losses = card["training"]["test_error_percent"], card["training"]["loss"]
    for text in (
        f"{error:.2f} %",
        f"{losses[0]:.3f} → {losses[-1]:.3f}",
        "acclimate train --model",
    ):
        assert text in result.stdout
    assert "train (10) …" in result.stderr
    refused = run(*words)
    assert isinstance(refused.exception, BadInput)
    check_coded(refused.exception, "already_exists", path=out)
    again = run(*words, "--resume")
    assert "this run had ended before; nothing was done" in again.stdout
    assert run(*words, "--force").exit_code == 0


def test_the_command_in_the_card_is_the_run(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TrainSettings] = []

    def train(settings: TrainSettings, out: Path, **options: Any) -> TrainResult:
        asked.append(settings)
        return TrainResult(path=out, minutes=0.0, error=None, losses=(1.0,))

    monkeypatch.setattr("acclimate.training.train", train)
    changed = make_settings(
        photos,
        epochs=7,
        batch_size=32,
        lr=0.025,
        momentum=0.5,
        weight_decay=1e-05,
        warmup_epochs=0.5,
        label_smoothing=0.1,
        objective="augmix",
        precision="bf16-mixed",
        images=20,
        size=16,
        devices=2,
        seed=3,
    )
    plain = TrainSettings(model="resnet20-cifar10", data="cifar10")
    for settings in (changed, plain):
        assert run(*words_of(settings), "--out", "a.safetensors").exit_code == 0
        assert asked[-1] == settings


def test_mistakes_are_refused_before_anything_is_loaded(photos: Path) -> None:
    start = ("--model", "resnet9-cifar10", "--out", "a.safetensors")
    result = run(*start, "--data", str(photos), "--augmentation", "augmax")
    assert isinstance(result.exception, InvalidConfig)
    check_coded(result.exception, "invalid_options", problems=lambda found: "augmentation" in found)
    result = run(*start, "--data", str(photos), "--size", "8x9")
    check_coded(result.exception, "malformed", option="size")
    result = run(*start, "--data", "cifra10")
    check_coded(result.exception, "unknown_name", kind="data set", name="cifra10")


def test_an_interrupted_run_says_how_to_go_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("acclimate.training.trainer.run_epochs", stop)
    out = tmp_path / "out.safetensors"
    result = run(*words_of(make_settings(photos)), "--out", str(out), "--device", "cpu")
    assert result.exit_code != 0
    assert "Run the same command again with --resume to continue." in result.stderr


def train_on_two(photos: Path) -> nn.Module:
    """Return what two processes come to: each half a batch, with dropout and statistics of its own.

    The gradients are averaged before each step; the running statistics are those of the first.
    """
    data = open_folder(photos / "train")
    model, other = tiny_cnn().train(), tiny_cnn().train()
    optimizer = torch.optim.SGD(
        model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    with torch.random.fork_rng():
        for step, picks in enumerate(batch_order(40, 8, 0, 0)):
            other.load_state_dict(model.state_dict())
            for rank, net in enumerate((model, other)):
                x, y = next(data.batches([picks[rank::2]]))
                x = shift_and_flip(x, generator_at(0, "augmentation", 0, step, rank))
                torch.manual_seed(seed_of(0, "layers", 0, step, rank))
                net.zero_grad()
                F.cross_entropy(net(x / 255), y).backward()
            for mine, its in zip(model.parameters(), other.parameters(), strict=True):
                assert mine.grad is not None
                mine.grad = (mine.grad + its.grad) / 2
            optimizer.param_groups[0]["lr"] = 0.1 * (1 + math.cos(math.pi * step / 5)) / 2
            optimizer.step()
    return model


@pytest.mark.slow
def test_two_devices_train_together(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    settings = make_settings(photos, epochs=1, devices=2)
    program = "from acclimate.cli.main import main; main()"
    words = ["train", *words_of(settings), "--out", str(out), "--device", "cpu"]
    (tmp_path / "command.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "command.py"), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tensors, card = read_file(out, "zoo")
    assert card["training"]["settings"]["devices"] == 2
    for name, expected in train_on_two(photos).state_dict().items():
        torch.testing.assert_close(tensors[name], expected, rtol=1e-4, atol=1e-6)
