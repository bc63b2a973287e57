"""Training: settings, order, augmentation, and the loop against a loop written out."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn

from acclimate import zoo
from acclimate.data import SETS, load
from acclimate.errors import AcclimateError, BadInput, InvalidConfig
from acclimate.functional.augmix import shift_and_flip
from acclimate.functional.rng import generator_at, seed_of
from acclimate.storage import read_file
from acclimate.training import CrossEntropy, Objective, TrainSettings, train
from acclimate.training.checkpoint import log_path
from acclimate.training.sets import load_sets
from acclimate.training.settings import learning_rate
from acclimate.training.trainer import batch_order
from acclimate.zoo.catalog import CATALOG
from tests.cli_models import CLASSES, tiny_cnn
from tests.codes import raises, warns
from tests.training.samples import make_photos, make_settings
from tests.zoo.small import add_small

CPU: dict[str, Any] = {"device": "cpu"}


# Settings and schedule --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "kind", "name", "known"),
    [
        ({"model": "resnet20-cifar1"}, "model", "resnet20-cifar1", tuple(CATALOG)),
        ({"data": "cifar11"}, "data set", "cifar11", tuple(SETS)),
    ],
)
def test_names_that_are_unknown_are_refused(
    changes: dict[str, Any], kind: str, name: str, known: tuple[str, ...]
) -> None:
    with raises("unknown_name", kind=kind, name=name, known=known):
        TrainSettings(**{"model": "resnet20-cifar10", "data": "cifar10", **changes})


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ("epochs", 0),
        ("images", 0),
        ("lr", 0.0),
        ("lr", math.inf),
        ("momentum", 1.0),
        ("weight_decay", -1.0),
        ("label_smoothing", math.nan),
        ("objective", "augmx"),
        ("augmentation", "standrd"),
        ("precision", "bf16mix"),
    ],
)
def test_values_that_cannot_be_are_refused(option: str, found: Any) -> None:
    with raises(
        "invalid_options", InvalidConfig, problems=lambda problems: [*problems] == [option]
    ):
        TrainSettings(**{"model": "resnet20-cifar10", "data": "cifar10", option: found})


@pytest.mark.parametrize(
    ("changes", "option", "found"),
    [
        ({"epochs": 2, "warmup_epochs": 2}, "warmup_epochs", 2),
        ({"devices": 3}, "batch_size", 128),
    ],
)
def test_values_that_do_not_fit_each_other_are_refused(
    changes: dict[str, Any], option: str, found: Any
) -> None:
    with raises("out_of_range", InvalidConfig, option=option, found=found):
        TrainSettings(**{"model": "resnet20-cifar10", "data": "cifar10", **changes})


@pytest.mark.parametrize("warmup", [0.0, 0.5, 2.0])
def test_the_rate_is_that_of_pytorchs_schedulers(warmup: float) -> None:
    run = TrainSettings(
        model="resnet20-cifar10", data="cifar10", epochs=4, lr=0.3, warmup_epochs=warmup
    )
    n_steps, n_warmup = 10, round(10 * warmup)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40 - n_warmup)
    for step in range(40):
        found = learning_rate(run, step, n_steps)
        if step < n_warmup:
            assert found == pytest.approx(0.3 * (step + 1) / n_warmup)
        else:
            assert found == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
            optimizer.step()
            cosine.step()


# Draws ------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_an_epoch_takes_no_image_twice_and_fills_every_batch(n: int, size: int, epoch: int) -> None:
    batches = batch_order(n, size, 3, epoch)
    taken = torch.cat(batches).tolist()
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(range(n))
    assert [len(batch) for batch in batches] == ([size] * (n // size) if n >= size else [n])


def test_orders_differ_by_epoch_and_seed_and_nothing_else() -> None:
    first = torch.cat(batch_order(100, 10, 0, 0))
    assert torch.equal(first, torch.cat(batch_order(100, 10, 0, 0)))
    assert torch.equal(first, torch.cat(batch_order(100, 20, 0, 0)))
    assert not torch.equal(first, torch.cat(batch_order(100, 10, 0, 1)))
    assert not torch.equal(first, torch.cat(batch_order(100, 10, 1, 0)))
    places = {seed_of(s, what, e) for s in range(9) for what in ("order", "x") for e in range(9)}
    assert len(places) == 162


def test_shifted_and_flipped_images_are_crops_of_the_padded_ones() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1200, 3, 16, 24)).astype(np.uint8)
    x = torch.from_numpy(pixels)
    out = shift_and_flip(x, torch.Generator().manual_seed(1))
    assert out.dtype == torch.uint8
    assert out.is_contiguous(memory_format=torch.channels_last)
    padded = np.pad(pixels, ((0, 0), (0, 0), (2, 2), (3, 3)), mode="reflect")
    ways = [(top, left, step) for top in range(5) for left in range(7) for step in (1, -1)]
    fits = np.stack(
        [
            (padded[..., top : top + 16, left : left + 24][..., ::step] == out.numpy()).all(
                (1, 2, 3)
            )
            for top, left, step in ways
        ]
    )
    assert (fits.sum(axis=0) == 1).all()  # every image is cut out in one way
    assert fits.any(axis=1).all()  # every way is taken
    again = shift_and_flip(x, torch.Generator().manual_seed(1))
    assert torch.equal(out, again)


# The loop ---------------------------------------------------------------------------------------


def test_training_is_the_plain_loop_written_out(photos: Path, tmp_path: Path) -> None:
    run = make_settings(photos, warmup_epochs=1, label_smoothing=0.1, seed=4)
    before = torch.get_rng_state()
    result = train(run, tmp_path / "out.safetensors", **CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.are_deterministic_algorithms_enabled()

    files = sorted((photos / "train").glob("*/*.png"))
    images = np.stack([np.asarray(Image.open(file)) for file in files])
    labels = torch.tensor([CLASSES.index(file.parent.name) for file in files])
    model = tiny_cnn().train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    losses = []
    with torch.random.fork_rng():
        for epoch in range(3):
            losses.append(0.0)
            for step, picks in enumerate(batch_order(40, 8, 4, epoch)):
                done = epoch * 5 + step
                rate = (done + 1) / 5 if done < 5 else (1 + math.cos(math.pi * (done - 5) / 10)) / 2
                optimizer.param_groups[0]["lr"] = 0.1 * rate
                torch.manual_seed(seed_of(4, "layers", epoch, step, 0))
                x = torch.from_numpy(images[picks.numpy()]).permute(0, 3, 1, 2)
                x = shift_and_flip(x, generator_at(4, "augmentation", epoch, step, 0))
                loss = F.cross_entropy(model(x / 255), labels[picks], label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[-1] += loss.item() / 5
    tensors, card = read_file(result.path, "zoo")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensors[name], tensor), name
    assert result.losses == pytest.approx(losses, abs=2e-6)

    model.eval()
    tests = sorted((photos / "test").glob("*/*.png"))
    wrong = [
        int(
            model(
                torch.from_numpy(np.asarray(Image.open(file)) / 255).float().permute(2, 0, 1)[None]
            ).argmax()
        )
        != CLASSES.index(file.parent.name)
        for file in tests
    ]
    assert result.error == pytest.approx(100 * sum(wrong) / 12)
    lines = [json.loads(line) for line in log_path(result.path).read_text().splitlines()]
    assert [line.get("epoch") for line in lines] == [1, 2, 3, None]
    assert lines[-1] == {"test_error_percent": round(100 * sum(wrong) / 12, 4)}
    made = card["training"]
    assert made["command"] == run.command
    assert made["settings"]["seed"] == 4
    assert made["data"]["n"] == 40
    assert len(made["data"]["listing_sha256"]) == 64
    assert made["test_error_percent"] == result.error
    assert {"acclimate", "torch", "lightning-fabric"} <= made["versions"].keys()


@pytest.mark.slow
def test_a_small_net_learns_the_built_in_task_and_the_zoo_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The known hash is of other weights: those one has trained oneself are taken without a word.
    add_small(monkeypatch, tmp_path, sha256="0" * 64)
    monkeypatch.setitem(sys.modules["acclimate.training.sets"]._N_BUILTIN, "test", 50)
    # At this rate the mean loss falls by 0.08 and more whatever the seed; at 0.1, it jumps.
    run = TrainSettings(model="small", data="builtin", epochs=2, images=160, batch_size=16, lr=0.02)
    told: list[tuple[str, int, int | None]] = []
    result = train(run, tmp_path / "small.safetensors", **CPU, progress=lambda *p: told.append(p))
    assert result.losses[1] < result.losses[0]
    assert [entry for entry in told if entry[0] == "train"] == [
        ("train", step + 1, 20) for step in range(20)
    ]
    assert told[-1] == ("test", 1, 1)
    model = zoo.load("small", result.path)
    _, test = load_sets(run)
    assert test is not None
    x, y = next(test.batches([torch.arange(50)]))
    error = 100 * float((model(x.float() / 255).argmax(1) != y).float().mean())
    assert error == pytest.approx(result.error)
    assert not model.training


def test_the_number_of_classes_comes_from_the_data(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_small(monkeypatch, tmp_path)
    out = tmp_path / "small.safetensors"
    train(make_settings(photos, model="small", epochs=1, size=8), out, **CPU)
    assert zoo.load("small", out)(torch.rand(2, 3, 8, 8)).shape == (2, 4)


@pytest.mark.slow
def test_models_of_libraries_are_trained_and_read_back(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("tests.torchvision_compat", reason="torchvision is not installed")
    name, out = "torchvision:shufflenet_v2_x0_5", tmp_path / "out.safetensors"
    run = make_settings(photos, model=name, epochs=1, batch_size=20, size=32)
    result = train(run, out, **CPU)
    model = zoo.load(name, out)
    _, test = load_sets(run)
    assert test is not None
    x, y = next(test.batches([torch.arange(12)]))
    error = 100 * float((model(x.float() / 255).argmax(1) != y).float().mean())
    assert error == pytest.approx(result.error)


def test_mixed_precision_computes_in_16_bits_and_keeps_weights_in_32(
    photos: Path, tmp_path: Path
) -> None:
    seen: set[torch.dtype] = set()

    class Spy(CrossEntropy):
        def forward(self, model: nn.Module, *batch: Any) -> Tensor:
            handle = model[0].register_forward_hook(lambda m, x, y: seen.add(y.dtype))
            loss = super().forward(model, *batch)
            handle.remove()
            return loss

    out = tmp_path / "out.safetensors"
    run = make_settings(photos, epochs=1, precision="bf16-mixed")
    train(run, out, **CPU, objective=Spy())
    assert seen == {torch.bfloat16}
    tensors, _ = read_file(out, "zoo")
    assert {t.dtype for t in tensors.values() if t.is_floating_point()} == {torch.float32}
    train(make_settings(photos, epochs=1), tmp_path / "full.safetensors", **CPU)
    full, _ = read_file(tmp_path / "full.safetensors", "zoo")
    assert not torch.equal(full["0.weight"], tensors["0.weight"])
    # Weights move by 0.05; with the three digits of 16 bits, they should agree to 0.0005.
    torch.testing.assert_close(full["0.weight"], tensors["0.weight"], rtol=0, atol=0.02)


class WithHead(Objective):
    """Cross entropy, and a second head that must tell flipped images from others."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(24, 2)

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        flipped = torch.rand(len(x), generator=generator) < 0.5
        x = torch.where(flipped[:, None, None, None], x.flip(3), x) / 255
        features = model[:-1](x)  # type: ignore[index]
        own = F.cross_entropy(self.head(features), flipped.long())
        return F.cross_entropy(model[-1](features), y) + own  # type: ignore[index]


def test_an_objective_may_have_a_head_of_its_own(photos: Path, tmp_path: Path) -> None:
    objective = WithHead()
    before = objective.head.weight.detach().clone()
    run = make_settings(photos, epochs=1)
    result = train(run, tmp_path / "out.safetensors", **CPU, objective=objective)
    assert not torch.equal(objective.head.weight, before)
    tensors, card = read_file(result.path, "zoo")
    assert tensors.keys() == tiny_cnn().state_dict().keys()
    assert card["training"]["objective"] == "WithHead"


# What is refused --------------------------------------------------------------------------------


def test_a_loss_that_explodes_ends_the_run(photos: Path, tmp_path: Path) -> None:
    run = make_settings(photos, lr=1e30)
    with raises("diverged", step=lambda step: step >= 2):  # the first has the weights given
        train(run, tmp_path / "out.safetensors", **CPU)


def test_a_model_with_other_logits_is_refused(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    (photos / "train" / "gnu").mkdir()
    Image.new("RGB", (8, 8)).save(photos / "train" / "gnu" / "a.png")
    with raises("wrong_logits", found=(2, 4)):
        train(make_settings(photos), tmp_path / "out.safetensors", **CPU)


def test_images_the_model_cannot_take_are_refused(photos: Path, tmp_path: Path) -> None:
    run = make_settings(photos, model="tests.cli_models:plain_mlp", size=16)
    with raises("model_rejects_input", found=(2, 3, 16, 16)):
        train(run, tmp_path / "out.safetensors", **CPU)


@pytest.mark.parametrize(
    ("changes", "code", "about"),
    [
        ({"data": "cifar10c"}, "no_training_images", {"name": "cifar10c"}),
        ({"data": "cifar10_1"}, "no_training_images", {"name": "cifar10_1"}),
        ({"data": "cifar10", "size": 8}, "not_applicable", {"option": "size"}),
        ({"data": "imagenet"}, "not_found", {"path": lambda path: path.name == "imagenet"}),
        ({"images": 41}, "out_of_range", {"option": "images", "found": 41}),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused(
    changes: dict[str, Any], code: str, about: dict[str, Any], photos: Path, tmp_path: Path
) -> None:
    with raises(code, BadInput, **about):
        load_sets(make_settings(photos, **changes), tmp_path)


def test_folders_without_splits_and_unreadable_images(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    plain = photos / "train"
    broken = sorted((plain / "cat").iterdir())[3]
    broken.write_bytes(b"not an image")
    data, test = load_sets(make_settings(plain, size=8))
    assert test is None
    assert data.classes == CLASSES
    with warns("unreadable_images", paths=(broken,)):
        batches = list(data.batches([torch.arange(20), torch.arange(20, 40)]))
    assert [(len(x), len(y)) for x, y in batches] == [(19, 19), (20, 20)]
    assert batches[1][1].tolist() == [2] * 10 + [3] * 10
    assert batches[0][0].dtype == torch.uint8
    with warns("unreadable_images", paths=(broken,)):
        result = train(make_settings(plain, size=8, epochs=1), tmp_path / "a.safetensors", **CPU)
    assert result.error is None
    few = load("image-folder", "test", path=photos, n=6)
    assert len(few) == 6
    assert next(few.batches([torch.arange(6)]))[1].tolist() == [0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("changes", "device", "kind", "code", "about"),
    [
        (
            {},
            "cudda",
            BadInput,
            "unknown_name",
            {"kind": "device", "name": "cudda", "known": ("auto", "cpu", "cuda", "mps")},
        ),
        (
            {"devices": 2, "batch_size": 8},
            "mps",
            BadInput,
            "device_unavailable",
            {"device": "mps"},
        ),
        (
            {"precision": "16-mixed"},
            "cpu",
            InvalidConfig,
            "conflicting_options",
            {"options": ("device", "precision")},
        ),
    ],
)
def test_devices_that_are_not_there_are_refused(
    changes: dict[str, Any],
    device: str,
    kind: type[AcclimateError],
    code: str,
    about: dict[str, Any],
    photos: Path,
    tmp_path: Path,
) -> None:
    with raises(code, kind, **about):
        train(make_settings(photos, **changes), tmp_path / "out.safetensors", device=device)


def test_the_message_for_a_missing_extra_names_the_command_that_installs_it(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with raises("missing_extra", package="lightning-fabric") as caught:
        train(make_settings(photos), tmp_path / "out.safetensors", **CPU)
    assert "pip install 'acclimate[train]'" in str(caught.value)
