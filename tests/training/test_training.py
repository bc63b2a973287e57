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
from acclimate.errors import (
    AcclimateWarning,
    BadInput,
    InvalidConfig,
    MissingExtra,
    UnsuitableModel,
)
from acclimate.storage import read_file
from acclimate.training import CrossEntropy, Objective, TrainSettings, train
from acclimate.training.augment import shift_and_flip
from acclimate.training.draws import batch_order, generator_at, seed_of
from acclimate.training.output import log_path
from acclimate.training.sets import FolderSet, load_sets
from acclimate.training.settings import learning_rate
from tests.cli_models import CLASSES, tiny_cnn
from tests.training_samples import make_photos, make_settings
from tests.zoo_small import add_small

CPU: dict[str, Any] = {"device": "cpu"}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos")


# Settings and schedule --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "resnet20-cifar1"}, 'Did you mean "resnet20-cifar10"'),
        ({"data": "cifar11"}, 'neither a data set nor a folder. Did you mean "cifar1'),
        ({"augmentation": "augmx"}, 'no augmentation "augmx". Did you mean "augmix"'),
        ({"precision": "bf16mix"}, 'no precision "bf16mix". Did you mean "bf16-mixed"'),
        ({"epochs": 0}, "epochs to be at least 1, found 0"),
        ({"images": 0}, "images to be at least 1, found 0"),
        ({"lr": 0.0}, "lr above 0, found 0.0"),
        ({"lr": math.inf}, "lr above 0, found inf"),
        ({"momentum": 1.0}, "momentum of at least 0 and below 1, found 1.0"),
        ({"weight_decay": -1.0}, "weight_decay of at least 0, found -1.0"),
        ({"label_smoothing": math.nan}, "label_smoothing of at least 0 and below 1, found nan"),
        ({"epochs": 2, "warmup_epochs": 2}, "below the 2 epochs, found 2; give more epochs"),
        ({"devices": 3}, "3 devices can share equally, found 128; give a multiple of 3"),
    ],
)
def test_settings_that_cannot_be_are_explained(changes: dict[str, Any], says: str) -> None:
    with pytest.raises((BadInput, InvalidConfig), match=says):
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
    seen = set()
    for image, result in zip(pixels, out.numpy(), strict=True):
        padded = np.pad(image, ((0, 0), (2, 2), (3, 3)), mode="reflect")
        fits = [
            (top, left, flip)
            for top in range(5)
            for left in range(7)
            for flip in (False, True)
            if np.array_equal(
                padded[:, top : top + 16, left : left + 24][:, :, :: -1 if flip else 1], result
            )
        ]
        assert len(fits) == 1
        seen.add(fits[0])
    assert len(seen) == 5 * 7 * 2
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


def test_a_small_net_learns_the_built_in_task_and_the_zoo_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The known hash is of other weights: those one has trained oneself are taken without a word.
    add_small(monkeypatch, tmp_path, sha256="0" * 64)
    monkeypatch.setitem(sys.modules["acclimate.training.sets"]._N_BUILTIN, "test", 50)
    run = TrainSettings(model="small", data="builtin", epochs=2, images=320, batch_size=32)
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


def test_models_of_libraries_are_trained_and_read_back(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("tests.torchvision_door", reason="torchvision is not installed")
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
    result = train(make_settings(photos), tmp_path / "out.safetensors", **CPU, objective=objective)
    assert not torch.equal(objective.head.weight, before)
    tensors, card = read_file(result.path, "zoo")
    assert tensors.keys() == tiny_cnn().state_dict().keys()
    assert card["training"]["objective"] == "WithHead"


# What is refused --------------------------------------------------------------------------------


def test_a_loss_that_explodes_ends_the_run_with_a_remedy(photos: Path, tmp_path: Path) -> None:
    run = make_settings(photos, lr=1e30)
    with pytest.raises(InvalidConfig, match=r"loss became (nan|inf) in step \d .*smaller --lr"):
        train(run, tmp_path / "out.safetensors", **CPU)


def test_a_model_with_other_logits_is_refused(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    (photos / "train" / "gnu").mkdir()
    Image.new("RGB", (8, 8)).save(photos / "train" / "gnu" / "a.png")
    with pytest.raises(UnsuitableModel, match=r"shape \(2, 5\) .* of 5 classes, found \(2, 4\)"):
        train(make_settings(photos), tmp_path / "out.safetensors", **CPU)


def test_images_the_model_cannot_take_are_refused(photos: Path, tmp_path: Path) -> None:
    run = make_settings(photos, model="tests.cli_models:plain_mlp", size=16)
    with pytest.raises(BadInput, match=r"cannot take a batch of shape \(2, 3, 16, 16\)"):
        train(run, tmp_path / "out.safetensors", **CPU)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": "cifar10c"}, "cifar10c has no training images.*Train on cifar10, cifar100"),
        ({"data": "cifar10_1"}, "cifar10_1 has no training images"),
        ({"data": "cifar10", "size": 8}, "--size is for folders"),
        ({"data": "imagenet"}, "no folder .*imagenet"),
        ({"images": 41}, "at most the 40 images in .*, found images=41"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused(
    changes: dict[str, Any], says: str, photos: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=says):
        load_sets(make_settings(photos, **changes), tmp_path)


def test_folders_without_splits_and_unreadable_images(photos: Path, tmp_path: Path) -> None:
    plain = photos / "train"
    broken = sorted((plain / "cat").iterdir())[3]
    broken.write_bytes(b"not an image")
    data, test = load_sets(make_settings(plain, size=8))
    assert test is None
    assert data.classes == CLASSES
    with pytest.warns(AcclimateWarning, match=r"\.png is left out: it cannot be read"):
        batches = list(data.batches([torch.arange(20), torch.arange(20, 40)]))
    assert [(len(x), len(y)) for x, y in batches] == [(19, 19), (20, 20)]
    assert batches[1][1].tolist() == [2] * 10 + [3] * 10
    assert batches[0][0].dtype == torch.uint8
    with pytest.warns(AcclimateWarning, match="left out"):
        result = train(make_settings(plain, size=8, epochs=1), tmp_path / "a.safetensors", **CPU)
    assert result.error is None
    few = FolderSet(photos / "test", n=6)
    assert len(few) == 6
    assert next(few.batches([torch.arange(6)]))[1].tolist() == [0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("changes", "device", "says"),
    [
        ({}, "cudda", 'no device "cudda". Did you mean "cuda"'),
        (
            {"devices": 2, "batch_size": 8},
            "mps",
            r'2 device\(s\) "mps" on this machine, found [01]',
        ),
        ({"precision": "16-mixed"}, "cpu", "16-mixed needs a graphics processor.*bf16-mixed"),
    ],
)
def test_devices_that_are_not_there_are_refused(
    changes: dict[str, Any], device: str, says: str, photos: Path, tmp_path: Path
) -> None:
    with pytest.raises((BadInput, InvalidConfig), match=says):
        train(make_settings(photos, **changes), tmp_path / "out.safetensors", device=device)


def test_a_missing_extra_is_named(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(MissingExtra, match=r"pip install 'acclimate\[train\]'"):
        train(make_settings(photos), tmp_path / "out.safetensors", **CPU)
