"""Joint training with a contrastive task, and the whole way from there to TTT++."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typer.testing import CliRunner

import acclimate
from acclimate import zoo
from acclimate.cli.main import app
from acclimate.functional.augmix import shift_and_flip
from acclimate.functional.views import get_views
from acclimate.methods import METHODS
from acclimate.methods.tfa import Tfa
from acclimate.methods.ttt_pp import TttPp
from acclimate.parts import Contrast
from acclimate.storage import read_file
from acclimate.training import CrossEntropy, TrainSettings, train
from acclimate.training.objectives import SimclrJoint, head_path
from tests.cli_models import tiny_cnn
from tests.codes import raises
from tests.reference import oracles_alignment as oracles
from tests.training.samples import make_settings
from tests.zoo.small import add_small

METHODS.setdefault("tfa", Tfa)
METHODS.setdefault("ttt_pp", TttPp)

CPU: dict[str, Any] = {"device": "cpu"}


def batch(n: int = 6) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (n, 3, 8, 8), generator=draws).to(torch.uint8)
    return x, torch.arange(n) % 4


def plain_cnn() -> nn.Module:
    """The tiny model without dropout, so that two forwards agree."""
    model = tiny_cnn().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def test_the_loss_is_the_main_loss_and_the_weighted_contrast() -> None:
    model, other = plain_cnn(), plain_cnn()
    x, y = batch()
    objective = SimclrJoint(CrossEntropy(), weight=0.7, temperature=0.3, seed=5)
    objective.attach(model, x)
    found = objective(model, x, y, torch.Generator().manual_seed(2))

    draws = torch.Generator().manual_seed(2)
    views = torch.cat([get_views("simclr")(x / 255, draws) for _ in range(2)])
    features = other[:-1](views)  # type: ignore[index]
    weights = dict(objective.head.state_dict())  # type: ignore[union-attr]
    first, second = oracles.project(weights, features).chunk(2)
    contrast = oracles.nt_xent(first, second, 0.3)
    main = F.cross_entropy(other(shift_and_flip(x, draws) / 255), y)
    assert found.item() == pytest.approx((main + 0.7 * contrast).item(), abs=1e-5)
    for name, buffer in model.named_buffers():  # both passes move the running statistics
        torch.testing.assert_close(buffer, other.get_buffer(name))
    found.backward()
    assert all(parameter.grad is not None for parameter in objective.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_what_cannot_be_is_refused() -> None:
    with raises("out_of_range", option="weight", found=0.0):
        SimclrJoint(CrossEntropy(), weight=0.0)
    with raises("not_attached"):
        SimclrJoint(CrossEntropy())(tiny_cnn(), *batch(), torch.Generator())
    known = {"model": "resnet20-cifar10", "data": "cifar10"}
    for wrong in (
        {"objective": "simclear"},
        {"contrast_weight": 0.0},
        {"contrast_weight": math.inf},
    ):
        expected = {"problems": lambda found, wrong=wrong: set(found) == set(wrong)}
        with raises("invalid_options", **expected):
            TrainSettings(**{**known, **wrong})
    settings = TrainSettings(**known, objective="simclr", contrast_weight=0.5)
    assert settings.command.endswith("--objective simclr --contrast-weight 0.5")
    with raises("conflicting_options", options=("objective", "augmentation")):
        TrainSettings(**known, objective="augmix", augmentation="none")


def test_from_joint_training_to_ttt_pp(photos: Path, tmp_path: Path) -> None:
    """`train --objective simclr`, then prepare, then adapt."""
    out = tmp_path / "joint.safetensors"
    settings = make_settings(photos, epochs=2, objective="simclr", lr=0.02)
    words = [*shlex.split(settings.command)[1:], "--out", str(out), "--device", "cpu"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert head_path(out).name == "joint.head.safetensors"
    assert "joint.head.safetensors" in "".join(result.stdout.split())
    tensors, card = read_file(out, "zoo")
    assert tensors.keys() == tiny_cnn().state_dict().keys()  # the model's file has no head in it
    assert card["training"]["objective"] == "SimclrJoint"

    model = zoo.load("tests.cli_models:tiny_cnn", out)
    draws = torch.Generator().manual_seed(0)
    source = [(torch.rand(8, 3, 8, 8, generator=draws), torch.arange(8) % 4) for _ in range(4)]
    artifact = acclimate.prepare(
        model,
        source,
        method="ttt_pp",
        parts=[Contrast(batch_size=8, head=head_path(out))],
    )
    head, _ = read_file(head_path(out), "contrast_head")
    assert all(torch.equal(head[name], t) for name, t in artifact.part("contrast_head").items())
    adapted = acclimate.adapt(model, "ttt_pp", artifact, lr=1e-4)
    for x, _ in source:
        assert bool(adapted(x * 0.5).isfinite().all())
    assert adapted.counts.updates == len(source)
    adapted.unwrap()

    train(make_settings(photos, epochs=1, seed=1), tmp_path / "other.safetensors", **CPU)
    stranger = zoo.load("tests.cli_models:tiny_cnn", tmp_path / "other.safetensors")
    with raises("other_model", differences=lambda found: list(found) == ["weights_sha256"]):
        acclimate.prepare(stranger, source, method="ttt_pp", parts=[Contrast(head=head_path(out))])


class Cut(Exception):
    """An interruption."""


@pytest.mark.slow
def test_a_run_that_was_cut_ends_at_the_same_head(photos: Path, tmp_path: Path) -> None:
    settings = make_settings(photos, epochs=2, objective="simclr", lr=0.02)
    whole = train(settings, tmp_path / "whole.safetensors", **CPU)

    def cut(stage: str, done: int, total: int | None) -> None:
        if stage == "train" and done == 7:
            raise Cut

    parts = tmp_path / "parts.safetensors"
    with pytest.raises(Cut):
        train(settings, parts, save_every=2, progress=cut, **CPU)
    assert not head_path(parts).exists()
    train(settings, parts, resume=True, **CPU)
    for first, second, kind in (
        (whole.path, parts, "zoo"),
        (head_path(whole.path), head_path(parts), "contrast_head"),
    ):
        expected, found = read_file(first, kind)[0], read_file(second, kind)[0]
        assert all(torch.equal(expected[name], found[name]) for name in expected)
    other = train(
        make_settings(photos, epochs=2, objective="simclr", contrast_weight=3.0, lr=0.02),
        tmp_path / "weighted.safetensors",
        **CPU,
    )
    heavier = read_file(head_path(other.path), "contrast_head")[0]
    assert not torch.equal(heavier["0.weight"], found["0.weight"])


@pytest.mark.slow
def test_both_tasks_are_learned_on_the_built_in_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_small(monkeypatch, tmp_path, sha256="0" * 64)
    monkeypatch.setitem(sys.modules["acclimate.training.sets"]._N_BUILTIN, "test", 50)
    seen: list[tuple[float, float]] = []

    class Spy(SimclrJoint):
        def forward(self, model: nn.Module, *rest: Any) -> Tensor:
            parts: list[Tensor] = []
            hook = self.main.register_forward_hook(lambda m, i, loss: parts.append(loss))
            total = super().forward(model, *rest)
            hook.remove()
            seen.append((parts[0].item(), (total - parts[0]).item()))
            return total

    # At the usual rate of 0.1 the losses of so few steps jump, on each processor otherwise. At 0.02
    # both fall by 0.2 and more, whatever the seed.
    settings = TrainSettings(
        model="small", data="builtin", epochs=4, images=64, batch_size=16, lr=0.02
    )
    result = train(settings, tmp_path / "small.safetensors", objective=Spy(CrossEntropy()), **CPU)
    assert len(seen) == 16
    early, late = (torch.tensor(part).mean(dim=0) for part in (seen[:4], seen[-4:]))
    assert late[0] < early[0]
    assert late[1] < early[1] < math.log(31) + 1
    model = zoo.load("small", result.path)
    assert model(torch.rand(2, 3, 32, 32)).shape[0] == 2
