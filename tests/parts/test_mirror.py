"""The part `mirror`: accuracies by loops over images, and what decides."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import acclimate
from acclimate.parts.mirror import LARGEST_LOSS, Mirror, keeps_class
from acclimate.testing.dense_models import tiny_masks
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises


class Side(nn.Module):
    """Says on which side an image is brighter, or, if symmetric, whether it is bright at all."""

    def __init__(self, is_symmetric):
        super().__init__()
        weight = torch.ones(8) if is_symmetric else torch.arange(8.0) - 3.5
        self.head = nn.Linear(8, 2)
        with torch.no_grad():
            self.head.weight.copy_(torch.stack([-weight, weight]))
            shift = 4.0 if is_symmetric else 0.0
            self.head.bias.copy_(torch.tensor([shift, -shift]))

    def forward(self, x):
        return self.head(x.mean((1, 2)))


def images(n, seed=0):
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def labelled(model, n=40, n_wrong=0, size=10):
    """Return batches with the labels that the model predicts, but for some."""
    x = images(n)
    with torch.no_grad():
        y = model(x).argmax(dim=1)
    y[:n_wrong] = 1 - y[:n_wrong]
    return list(zip(x.split(size), y.split(size), strict=True))


def prepare(model, batches, **options):
    artifact = acclimate.prepare(model, batches, parts=[Mirror(**options)])
    part = artifact.part("mirror")
    return float(part["accuracy"]), float(part["mirrored"]), artifact.parts["mirror"]


def count_plainly(model, batches, n):
    """Return both accuracies, image by image."""
    right = [0, 0]
    seen = 0
    for x, y in batches:
        for image, label in zip(x, y, strict=True):
            if seen == n:
                break
            seen += 1
            with torch.no_grad():
                for place, view in enumerate((image, torch.stack([*image.unbind(-1)][::-1], -1))):
                    right[place] += int(model(view[None])[0].argmax()) == int(label)
    return [count / seen for count in right]


@pytest.mark.parametrize("n_wrong", [0, 10])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_symmetric_and_other_models(is_symmetric, n_wrong):
    model = Side(is_symmetric).eval()
    batches = labelled(model, n_wrong=n_wrong)
    accuracy, mirrored, card = prepare(model, batches)
    assert [accuracy, mirrored] == pytest.approx(count_plainly(model, batches, 40))
    assert accuracy == pytest.approx(1 - n_wrong / 40)
    # What is on the left comes to the right.
    assert mirrored == pytest.approx(accuracy if is_symmetric else 1 - accuracy)
    assert card["keeps_class"] == is_symmetric
    assert card["n_samples"] == 40


@pytest.mark.parametrize("n", [7, 25, 100])
def test_at_most_n_samples_are_used(n):
    model = Side(False).eval()
    batches = labelled(model, n=150, n_wrong=9, size=40)
    accuracy, mirrored, card = prepare(model, batches, n_samples=n)
    assert [accuracy, mirrored] == pytest.approx(count_plainly(model, batches, n))
    assert card["n_samples"] == n


@pytest.mark.parametrize("name", ["batch_norm", "vit"])
def test_tiny_models_in_training_mode_use_the_sources_statistics(name):
    model = tiny_model(name)
    with torch.no_grad():
        # No prediction is a matter of rounding.
        batches = [
            (x[clear], y[clear])
            for x, y in tiny_batches(6)
            if (clear := _clear(model, x)).sum() > 1
        ]
    n = sum(len(x) for x, _ in batches)
    expected = count_plainly(model, batches, n)
    accuracy, mirrored, _ = prepare(model.train(), batches)
    assert [accuracy, mirrored] == pytest.approx(expected)
    assert model.training


def _clear(model, x):
    gaps = [model(view).topk(2).values.diff().abs()[:, 0] for view in (x, x.flip(-1))]
    return torch.stack(gaps).amin(dim=0) > 1e-4


# Pixels ------------------------------------------------------------------------------------------


class Pixels(nn.Module):
    """Predicts each pixel by itself, or by its place."""

    def __init__(self, by_place):
        super().__init__()
        self.head = nn.Conv2d(1, 2, 1)
        self.by_place = by_place
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([-1.0, 1.0]).reshape(2, 1, 1, 1))
            self.head.bias.copy_(torch.tensor([0.5, -0.5]))

    def forward(self, x):
        place = torch.linspace(0, 1, x.shape[-1]).expand(len(x), 1, *x.shape[-2:])
        return self.head(place.to(x) if self.by_place else x[:, :1])


@pytest.mark.parametrize("by_place", [True, False])
def test_masks_are_mirrored_back_and_unlabelled_pixels_do_not_count(by_place):
    model, x = Pixels(by_place).eval(), images(6)
    with torch.no_grad():
        y = model(x).argmax(dim=1)
    y[:, :2, 0] = 255
    y[0, 5, 3] = 1 - y[0, 5, 3]
    accuracy, mirrored, card = prepare(model, [(x, y)])
    n = 6 * 62
    assert accuracy == pytest.approx((n - 1) / n)
    right = 0
    for number in range(6):
        with torch.no_grad():
            found = model(x[number : number + 1].flip(-1))[0].argmax(dim=0)
        for row in range(8):
            for column in range(8):
                label = int(y[number, row, column])
                right += label != 255 and int(found[row, 7 - column]) == label
    assert mirrored == pytest.approx(right / n)
    assert card["keeps_class"] == (not by_place)


@pytest.mark.parametrize("name", ["dense", "dense_pooling"])
def test_tiny_models_that_predict_every_pixel(name):
    accuracy, mirrored, card = prepare(tiny_model(name), tiny_masks(3))
    assert 0 <= accuracy <= 1
    assert 0 <= mirrored <= 1
    assert card["n_samples"] == 24


def test_masks_without_a_labelled_pixel_are_refused():
    x = images(6)
    with raises("no_labelled_pixels"):
        prepare(Pixels(False).eval(), [(x, torch.full((6, 8, 8), 255))])


# What is not an image ----------------------------------------------------------------------------


class Vectors:
    """Labelled vectors; `prepare` itself takes images only."""

    def __init__(self, x, y):
        self.batch = x, y

    def iterate(self, stage, report):
        yield self.batch

    def label_rows(self, y, grid):
        return y, torch.ones_like(y, dtype=torch.bool)


def test_what_is_not_an_image_has_no_mirror_image():
    random = torch.Generator().manual_seed(0)
    x, model = torch.rand(20, 6, generator=random), nn.Sequential(nn.Linear(6, 2)).eval()
    with torch.no_grad():
        y = model(x).argmax(dim=1)
    with raises("wrong_shape"):
        prepare(model, [(x, y)])
    info = acclimate.ModelInfo()
    context = SimpleNamespace(model=model, info=info, source=Vectors(x, y), call=None)
    tensors, card = Mirror().compute(context)
    assert tensors["mirror/accuracy"] == 1
    assert tensors["mirror/mirrored"] == 0
    assert not card["keeps_class"]


def test_a_small_loss_is_allowed():
    def decide(loss):
        return keeps_class(torch.tensor(0.8), torch.tensor(0.8 - loss))

    assert decide(-0.1)
    assert decide(0.0)
    assert decide(0.9 * LARGEST_LOSS)
    assert not decide(1.1 * LARGEST_LOSS)
