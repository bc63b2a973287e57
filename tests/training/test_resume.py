"""Runs that are cut and gone on with end at the same weights, to the last bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from acclimate.training import TrainResult, train
from acclimate.training.checkpoint import (
    Position,
    load_checkpoint,
    log_path,
    run_folder,
    save_checkpoint,
)
from tests.codes import raises
from tests.paths import ROOT
from tests.training.samples import (
    Cut,
    assert_same,
    cut_after,
    make_photos,
    make_settings,
    weights,
)
from tests.training.test_training import WithHead

CPU: dict[str, Any] = {"device": "cpu"}


Whole = Callable[..., TrainResult]


@pytest.fixture(scope="module")
def train_whole(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Runs without a cut by what they change, each done once; their files are only to be read."""
    folder = tmp_path_factory.mktemp("whole")

    @cache
    def train_once(**changes: Any) -> TrainResult:
        name = "-".join(map(str, changes.values())).replace(":", "-") or "plain"
        return train(make_settings(photos, **changes), folder / f"{name}.safetensors", **CPU)

    return train_once


@pytest.mark.parametrize(
    ("changes", "cuts"),
    [
        ({}, [1]),  # before the first checkpoint: from the beginning
        ({}, [3]),  # in the middle of the first epoch
        ({}, [5]),  # after an epoch's last step, before it was counted
        pytest.param({"warmup_epochs": 1.5}, [4, 9, 14], marks=pytest.mark.slow),
        pytest.param({"momentum": 0.0}, [8], marks=pytest.mark.slow),
        pytest.param({"objective": "augmix"}, [8], marks=pytest.mark.slow),
        pytest.param({"precision": "bf16-mixed"}, [8], marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_cut_ends_as_one_that_was_not(
    changes: dict[str, Any], cuts: list[int], train_whole: Whole, photos: Path, tmp_path: Path
) -> None:
    run = make_settings(photos, **changes)
    whole = train_whole(**changes)
    out = tmp_path / "cut.safetensors"
    for number, step in enumerate(cuts):
        torch.rand(step)  # whatever else the process draws has no influence
        with pytest.raises(Cut):
            train(run, out, **CPU, resume=number > 0, save_every=2, progress=cut_after(step))
    done: list[int] = []
    parts = train(run, out, **CPU, resume=True, save_every=2, progress=lambda *p: done.append(p[1]))
    assert (done[0] > 1) == (cuts[-1] > 1)
    assert_same(whole.path, out)
    assert parts.losses == whole.losses
    assert parts.error == whole.error
    assert not run_folder(out).path.exists()
    epochs = [json.loads(line).get("epoch") for line in log_path(out).read_text().splitlines()]
    assert epochs == [1, 2, 3, None]


def test_a_head_of_the_objective_is_gone_on_with(photos: Path, tmp_path: Path) -> None:
    def make() -> WithHead:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return WithHead()

    run, out, first = make_settings(photos, epochs=2), tmp_path / "cut.safetensors", make()
    train(run, tmp_path / "whole.safetensors", **CPU, objective=first)
    with pytest.raises(Cut):
        train(run, out, **CPU, objective=make(), save_every=3, progress=cut_after(7))
    second = make()
    train(run, out, **CPU, objective=second, resume=True)
    assert_same(tmp_path / "whole.safetensors", out)
    assert torch.equal(first.head.weight, second.head.weight)


def test_the_loss_scaling_of_16_bits_is_kept(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model(torch.full((1, 2), torch.inf)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler.scale(torch.ones(1))
    scaler.step(optimizer)
    scaler.update()  # infinite gradients: the scale is halved
    position = Position(epoch=1, step=2, loss_sum=0.5, seconds=3.0, scaler=scaler.state_dict())
    run = run_folder(tmp_path / "a.safetensors")
    with run.lock():
        run.begin({"seed": 0})
        save_checkpoint(run, model, optimizer, position)
        found, _ = load_checkpoint(run.begin({"seed": 0}), model, optimizer)
    assert found == position
    restored = torch.amp.GradScaler("cpu")
    restored.load_state_dict(found.scaler)
    assert restored.get_scale() == 512.0


@pytest.mark.slow
def test_a_process_that_was_killed_is_gone_on_with(
    train_whole: Whole, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "killed.safetensors"
    run = make_settings(photos, model="tests.cli_models:mortal_cnn")
    code = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from pathlib import Path; from acclimate.training import train\n"
        "from tests.training.samples import make_settings\n"
        "run = make_settings(Path(sys.argv[1]), model='tests.cli_models:mortal_cnn')\n"
        "train(run, sys.argv[2], device='cpu', save_every=1)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(photos), str(out)],
        env={**os.environ, "KILL_AT": "9"},
        cwd=ROOT,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert run_folder(out).path.exists()
    assert not out.exists()
    train(run, out, **CPU, resume=True)
    assert_same(train_whole(model="tests.cli_models:mortal_cnn").path, out)


def test_nothing_is_overwritten_unasked(photos: Path, tmp_path: Path) -> None:
    run, out = make_settings(photos, epochs=1), tmp_path / "out.safetensors"
    with pytest.raises(Cut):
        train(run, out, **CPU, save_every=2, progress=cut_after(4))
    with raises("unfinished_run", path=run_folder(out).path):
        train(run, out, **CPU)
    with raises("conflicting_options", options=("resume", "force")):
        train(run, out, **CPU, resume=True, force=True)
    train(run, out, **CPU, force=True)
    with raises("already_exists", path=out):
        train(run, out, **CPU)
    before = out.read_bytes()
    assert train(run, out, **CPU, resume=True).was_done
    assert out.read_bytes() == before
    other, first = make_settings(photos, epochs=1, seed=1), weights(out)["0.weight"]
    with raises("other_run", path=out):
        train(other, out, **CPU, resume=True)
    train(other, out, **CPU, force=True)
    assert not torch.equal(weights(out)["0.weight"], first)
    with raises("wrong_suffix", path=tmp_path / "out.pt"):
        train(run, tmp_path / "out.pt", **CPU)
    with raises("not_found", path=tmp_path / "nowhere"):
        train(run, tmp_path / "nowhere" / "out.safetensors", **CPU)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    photos, out = make_photos(tmp_path / "photos"), tmp_path / "out.safetensors"
    run = make_settings(photos)
    with pytest.raises(Cut):
        train(run, out, **CPU, save_every=2, progress=cut_after(3))
    with raises("other_settings", differences={"settings.lr": (0.1, 0.2)}):
        train(make_settings(photos, lr=0.2), out, **CPU, resume=True)
    photo = photos / "train" / "cat" / "000.png"
    photo.rename(tmp_path / "away.png")
    with raises("other_settings") as caught:
        train(run, out, **CPU, resume=True)
    assert caught.value.differences.keys() == {"data.n", "data.listing_sha256"}
    assert caught.value.differences["data.n"] == (40, 39)
    with raises("other_settings") as caught:
        train(run, out, **CPU, resume=True, objective=WithHead())
    assert caught.value.differences["objective"] == ("CrossEntropy", "WithHead")
    (tmp_path / "away.png").rename(photo)
    (state,) = run_folder(out).path.glob("*.state")
    content = bytearray(state.read_bytes())
    content[-3] ^= 1
    state.write_bytes(content)
    with raises("altered_file", path=state):
        train(run, out, **CPU, resume=True)


def test_two_processes_do_not_write_to_one_run(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    with run_folder(out).lock(), raises("in_use", path=run_folder(out).path):
        train(make_settings(photos), out, **CPU)
