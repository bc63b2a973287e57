"""The part `accuracy` of an artifact: what it is measured on, and that it measures it."""

from __future__ import annotations

import copy
import importlib.util

import numpy as np
import pytest
import torch
from torch import nn

import acclimate
from acclimate import Accuracy, corruptions
from acclimate.functional.pixels import Grid
from acclimate.functional.signals import (
    AccuracyMap,
    describe_predictions,
    find_places,
    measure_signals,
)
from acclimate.parts.accuracy import SIZES
from acclimate.testing.dense_models import tiny_masks
from acclimate.testing.models import MODEL_INFO, N_CLASSES, tiny_batches, tiny_model
from tests.codes import raises, warns

QUICK = Accuracy(n_samples=64, severities=(5,), n_runs=4)


def prepare(model, source, part=QUICK, **options):
    return acclimate.prepare(model, source, parts=[part], **options)


def get_maps(artifact):
    tensors = artifact.part("accuracy")
    return {
        size: AccuracyMap.from_tensors(
            size,
            {k.split("/")[1]: v for k, v in tensors.items() if k.startswith(f"{size}/")},
        )
        for size in SIZES
    }


def quantised(x):
    """Return images as 8 bits store them."""
    return (x.clamp(0, 1) * 255).round().byte().float() / 255


def test_prepared_twice_it_is_the_same():
    batches = tiny_batches(8)
    first, second = (prepare(tiny_model("batch_norm"), batches) for _ in range(2))
    assert first.tensors.keys() == second.tensors.keys()
    for name, tensor in first.tensors.items():
        assert torch.equal(tensor, second.tensors[name]), name
    assert first.parts == second.parts
    other = prepare(tiny_model("batch_norm"), batches, seed=1)
    assert any(not torch.equal(t, other.tensors[name]) for name, t in first.tensors.items())


@pytest.mark.parametrize(
    "name", ["batch_norm", "vit", "two_heads", "returns_dict", "frozen_stem", "dense"]
)
def test_the_model_and_the_random_numbers_are_as_before(name):
    model = tiny_model(name)
    model.train()
    next(iter(model.modules())).training = False
    source = tiny_masks(4) if name == "dense" else tiny_batches(4)
    gradients = [torch.ones_like(p) for p in model.parameters()]
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    prepare(model, source, info=MODEL_INFO.get(name))
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])


def test_none_of_the_fifteen_corruptions_is_used(monkeypatch):
    used = []

    def apply(pixels, name, severity, **options):
        used.append((name, severity))
        return pixels

    monkeypatch.setattr(corruptions, "apply", apply)
    prepare(tiny_model("mlp"), tiny_batches(4), "accuracy")
    assert {name for name, _ in used} == set(corruptions.HELD_OUT)
    assert {severity for _, severity in used} == {1, 3, 5}
    assert not set(corruptions.HELD_OUT) & set(corruptions.BENCHMARK)
    assert len(corruptions.BENCHMARK) == 15


def test_other_shifts_can_be_chosen(monkeypatch):
    used = set()

    def apply(pixels, name, severity, **options):
        used.add((name, severity))
        return pixels

    monkeypatch.setattr(corruptions, "apply", apply)
    part = Accuracy(n_samples=64, shifts=("fog", "contrast"), severities=(2, 4), n_runs=4)
    artifact = prepare(tiny_model("mlp"), tiny_batches(4), part)
    assert used == {(name, severity) for name in ("fog", "contrast") for severity in (2, 4)}
    assert artifact.parts["accuracy"]["shifts"] == ("fog", "contrast")


def test_confidence_and_correctness_on_clean_images():
    model, batches = tiny_model("batch_norm"), tiny_batches(8)
    part = prepare(model, batches).part("accuracy")
    x, y = (torch.cat(each) for each in zip(*batches, strict=True))
    with torch.no_grad():
        probabilities = model(quantised(x)).softmax(dim=1)
    confidence, predicted = probabilities.max(dim=1)
    assert torch.allclose(part["confidence"], confidence, rtol=0, atol=1e-5)
    clear = probabilities.topk(2).values.diff().abs()[:, 0] > 1e-4
    assert torch.equal(part["is_correct"][clear], (predicted == y)[clear].float())


def test_at_most_n_samples_are_used():
    found = prepare(tiny_model("mlp"), tiny_batches(10), QUICK)
    assert found.parts["accuracy"]["n_samples"] == 64
    assert len(found.part("accuracy")["confidence"]) == 64
    assert prepare(tiny_model("mlp"), tiny_batches(4), QUICK).parts["accuracy"]["n_samples"] == 32


def test_normalised_images_are_corrupted_as_they_were_before():
    """The corruptions see pixels, whatever the model's inputs are."""
    normalization = acclimate.Normalization((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))

    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = tiny_model("mlp").double()

        def forward(self, x):
            return self.net(normalization.denormalize(x))

    batches = tiny_batches(8, dtype=torch.float64)
    plain = prepare(tiny_model("mlp").double(), batches)
    info = acclimate.ModelInfo(normalization=normalization)
    normalised = [(normalization.normalize(x), y) for x, y in batches]
    found = prepare(Normalised().eval(), normalised, info=info)
    expected = plain.part("accuracy")
    for name in ("confidence", "is_correct"):
        assert torch.allclose(found.part("accuracy")[name], expected[name], rtol=0, atol=1e-5)


# Pixels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dense", "dense_pooling"])
def test_pixels(name):
    artifact = prepare(tiny_model(name), tiny_masks(8))
    for size, made in get_maps(artifact).items():
        assert all(bool(tensor.isfinite().all()) for tensor in made.to_tensors().values()), size
    part = artifact.part("accuracy")
    assert set(part["is_correct"].tolist()) <= {0.0, 1.0}
    assert len(part["is_correct"]) == len(part["confidence"])


@pytest.mark.parametrize("ignored", [0, 255])
def test_pixels_without_a_label_do_not_count(ignored):
    model, batches = tiny_model("dense_pooling"), tiny_masks(4)
    batches = [(x, y.where(y != 255, torch.tensor(ignored))) for x, y in batches]
    part = prepare(model, batches, ignore_label=ignored).part("accuracy")
    x, y = (torch.cat(each) for each in zip(*batches, strict=True))
    with torch.no_grad():
        probabilities = model(quantised(x)).softmax(dim=1)
    places = find_places(Grid(len(x), *y.shape[1:]))
    confidence, predicted = (each.flatten(1)[:, places] for each in probabilities.max(dim=1))
    labels = y.flatten(1)[:, places]
    known = labels != ignored
    assert 0 < int(known.sum()) < known.numel()
    assert torch.allclose(part["confidence"], confidence[known], rtol=0, atol=1e-5)
    clear = probabilities.topk(2, dim=1).values.diff(dim=1).abs().flatten(1)[:, places] > 1e-4
    is_correct = (predicted == labels)[known].float()
    assert torch.equal(part["is_correct"][clear[known]], is_correct[clear[known]])


# Refusals -----------------------------------------------------------------------------------------


def odd_images(shape):
    net = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), N_CLASSES))
    x = torch.rand(8, *shape, generator=torch.Generator().manual_seed(0))
    return net, [(x, torch.arange(8) % N_CLASSES)]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 8)])
def test_images_that_cannot_be_corrupted_are_refused_if_asked_for_and_left_out_if_not(shape):
    net, source = odd_images(shape)
    with raises("not_applicable", option="accuracy"):
        acclimate.prepare(net, source, parts=["accuracy"])
    with raises("not_applicable", option="accuracy"):
        acclimate.prepare(net, source, method="source", parts=[QUICK])
    with warns("accuracy_left_out") as notes:
        artifact = acclimate.prepare(net, source, method="source")
    assert len(notes) == 1
    assert list(artifact.parts) == ["features"]
    with raises("missing_parts", parts=("accuracy",)):
        acclimate.adapt(net, "source", artifact, guard=True)


def test_without_scipy_or_opencv_it_is_left_out(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "cv2" else found(name)
    )
    with warns("accuracy_left_out") as notes:
        artifact = acclimate.prepare(tiny_model("mlp"), tiny_batches(4), method="source")
    assert "cv2 cannot be imported" in str(notes[0])
    assert "acclimate[corruptions]" in str(notes[0])
    assert "accuracy" not in artifact.parts
    with raises("not_applicable", option="accuracy"):
        prepare(tiny_model("mlp"), tiny_batches(4))


def test_one_image_is_too_few():
    x, y = tiny_batches(1)[0]
    with raises("too_few_samples", expected=2, found=1):
        prepare(tiny_model("mlp"), [(x[:1], y[:1])])


# What the maps estimate ---------------------------------------------------------------------------


class Faded(nn.Module):
    """Tells four colours apart. It is as sure as it is right, because only the contrast decides."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, N_CLASSES)
        self.norm = nn.BatchNorm2d(3)
        colours = torch.eye(4, 3) - 0.25
        with torch.no_grad():
            self.head.weight.copy_(12 * colours)
            self.head.bias.zero_()

    def forward(self, x):
        return self.head(self.norm(x - 0.5).mean((2, 3)))


def coloured(n, seed, contrast=0.5):
    """Return images of four colours, which noise hides the more the lower their contrast is."""
    random = torch.Generator().manual_seed(seed)
    y = torch.randint(N_CLASSES, (n,), generator=random)
    colour = (torch.eye(4, 3) - 0.25)[y][:, :, None, None]
    noise = torch.randn(n, 3, 1, 1, generator=random)
    fine = torch.randn(n, 3, 8, 8, generator=random)
    return (0.5 + contrast * colour + 0.06 * noise + 0.05 * fine).clamp(0, 1), y


@pytest.fixture(scope="module")
def faded():
    model = Faded().eval()
    source = [coloured(64, seed) for seed in range(8)]
    return model, get_maps(prepare(model, source, Accuracy(severities=(1, 5), n_runs=4)))


@pytest.mark.parametrize("contrast", [0.5, 0.25])
def test_accuracy_under_a_shift_that_was_not_calibrated_is_recovered(faded, contrast):
    """The source model beside itself, on new images of less contrast."""
    model, maps = faded
    x, y = coloured(512, 100, contrast)
    with torch.no_grad():
        logits, mirrored = model(x), model(x.flip(-1))
    described = describe_predictions(logits, mirrored)
    truth = float((logits.argmax(1) == y).float().mean())
    found = maps[512].estimate(
        measure_signals(torch.cat([described, described], dim=1), N_CLASSES), 512
    )
    assert found.source.value == pytest.approx(truth, abs=0.12)
    assert found.adapted.value == pytest.approx(truth, abs=0.12)
    assert abs(found.gain.value) < 0.06
