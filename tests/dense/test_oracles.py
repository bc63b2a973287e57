"""Methods on pixels against plain loops: maps stay maps, losses are written from the formulas."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import acclimate
from acclimate import Penalty
from acclimate.functional.augmentations import CottaAugmentation, augment
from acclimate.testing.dense_models import tiny_masks
from acclimate.testing.models import tiny_model
from tests.codes import warns
from tests.reference.oracles import PlainAdam, batch_mode

XS = [x for x, _ in tiny_masks(4, batch_size=2, seed=3, dtype=torch.float64)]
MODELS = ("dense", "dense_pooling")


@functools.cache
def artifact_of(name):
    return acclimate.prepare(
        tiny_model(name).double(),
        tiny_masks(4, dtype=torch.float64),
        method="swr",
        parts=[Penalty(n_samples=16)],
    )


class MovingNorm(nn.Module):
    """BatchNorm whose running statistics take a step, and are then used."""

    def __init__(self, layer, share):
        super().__init__()
        self.weight, self.bias, self.eps, self.share = layer.weight, layer.bias, layer.eps, share
        self.mean, self.variance = layer.running_mean.clone(), layer.running_var.clone()

    def forward(self, x):
        values = x.detach().transpose(0, 1).flatten(1)
        self.mean = (1 - self.share) * self.mean + self.share * values.mean(dim=1)
        self.variance = (1 - self.share) * self.variance + self.share * values.var(dim=1)
        shape = (1, -1, 1, 1)
        normal = (x - self.mean.view(shape)) / (self.variance.view(shape) + self.eps).sqrt()
        return normal * self.weight.view(shape) + self.bias.view(shape)


def with_running_statistics(model, share=0.1):
    model = batch_mode(model)
    for module in list(model.modules()):
        for key, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, key, MovingNorm(child, share))
    return model


def entropies(p):
    return -(p * p.log()).sum(dim=1)


def mean_entropy(logits):
    return entropies(logits.softmax(dim=1)).mean()


def main_loss(logits):
    p = logits.softmax(dim=1)
    mean = p.mean(dim=(0, 2, 3))
    return 0.2 * entropies(p).mean() + 0.25 * (mean * mean.log()).sum()


def adapt_plainly(model, loss, xs, chosen, lr, penalty=None, strength=0.0, anchor="source"):
    """Predict, then step; return the maps before each update."""
    parameters = dict(model.named_parameters())
    moved = {name: p for name, p in parameters.items() if chosen(name)}
    adam = PlainAdam(list(moved.values()), lr)
    anchors = {name: p.detach().clone() for name, p in moved.items()}
    held = anchors if anchor == "source" else None
    found = []
    for x in xs:
        logits = model(x)
        found.append(logits.detach())
        total = loss(logits)
        if penalty is not None and held is not None:
            parts = [float(penalty[n]) * ((p - held[n]) ** 2).sum() for n, p in moved.items()]
            total = total + strength * sum(parts)
        gradients = torch.autograd.grad(total, list(moved.values()), allow_unused=True)
        if anchor == "previous":
            held = {name: p.detach().clone() for name, p in moved.items()}
        adam.step(gradients)
    return found


def run(adapted):
    return [adapted(x) for x in XS]


def check(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert float((ours - theirs).abs().max()) < 1e-8


def is_norm(model):
    norms = [n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    return lambda name: name.rpartition(".")[0] in norms


@pytest.mark.parametrize("name", MODELS)
def test_norm(name):
    model = tiny_model(name).double()
    plain = batch_mode(model)
    with torch.no_grad():
        expected = [plain(x) for x in XS]
    check(run(acclimate.adapt(model, "norm")), expected)


@pytest.mark.parametrize("name", MODELS)
def test_tent(name):
    model = tiny_model(name).double()
    expected = adapt_plainly(batch_mode(model), mean_entropy, XS, is_norm(model), 1e-3)
    check(run(acclimate.adapt(model, "tent")), expected)


@pytest.mark.parametrize("name", MODELS)
def test_infomax(name):
    model = tiny_model(name).double()
    expected = adapt_plainly(batch_mode(model), main_loss, XS, lambda _: True, 1e-3)
    check(run(acclimate.adapt(model, "infomax")), expected)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("anchor", ["previous", "source"])
def test_swr(name, anchor):
    model, artifact = tiny_model(name).double(), artifact_of(name)
    expected = adapt_plainly(
        batch_mode(model),
        main_loss,
        XS,
        lambda _: True,
        1e-3,
        artifact.part("penalty"),
        250.0,
        anchor,
    )
    check(run(acclimate.adapt(model, "swr", artifact, anchor=anchor)), expected)


@pytest.mark.parametrize("name", MODELS)
def test_swr_in_the_setting_of_the_paper(name):
    """Running statistics, the source as anchor, strength 40; at a rate at which something moves."""
    model, artifact = tiny_model(name).double(), artifact_of(name)

    def plain(lr):
        moving = with_running_statistics(model)
        penalty = artifact.part("penalty")
        return adapt_plainly(moving, main_loss, XS, lambda _: True, lr, penalty, 40.0)

    expected, expected_still = plain(1e-3), plain(0.0)
    adapted = acclimate.adapt(model, "swr", artifact, preset="cityscapes", lr=1e-3)
    check(run(adapted), expected)
    still = acclimate.adapt(tiny_model(name).double(), "swr", artifact, preset="cityscapes", lr=0.0)
    with warns("nothing_changed"):
        found = run(still)
    check(found, expected_still)  # the statistics move all the same
    assert float((found[-1] - expected[-1]).abs().max()) > 1e-3


def test_cotta_mirrors_every_second_image_back():
    model = tiny_model("dense").double()
    adapted = acclimate.adapt(model, "cotta", n_augmentations=3, confidence=1.0)
    draws = torch.Generator().manual_seed(0)
    how = CottaAugmentation(in_place=True)
    plain = batch_mode(copy.deepcopy(model))
    x = XS[0]
    changed = [augment(how, x, None, draws) for _ in range(3)]
    with torch.no_grad():
        maps = [plain(changed[0]), plain(changed[1].flip(-1)).flip(-1), plain(changed[2])]
        unchanged = plain(x)
    expected = torch.stack(maps).mean(dim=0)
    found = adapted(x)
    assert float((found - expected).abs().max()) < 1e-10
    assert float((found - unchanged).abs().max()) > 1e-3


def test_supervised_learns_from_labelled_pixels():
    model = tiny_model("dense").double()
    batches = tiny_masks(3, batch_size=2, seed=3, dtype=torch.float64)
    batches[1][1][0] = 255  # an image without any label
    masks = iter([y for _, y in batches])

    def loss(logits):
        y = next(masks)
        size = {"size": y.shape[1:], "mode": "bilinear", "align_corners": False}
        enlarged = nn.functional.interpolate(logits, **size)
        each = [
            nn.functional.cross_entropy(enlarged[n : n + 1], y[n : n + 1], ignore_index=255)
            for n in range(len(y))
            if (y[n] != 255).any()
        ]
        return torch.stack(each).mean()

    xs = [x for x, _ in batches]
    expected = adapt_plainly(batch_mode(model), loss, xs, lambda _: True, 1e-3)
    adapted = acclimate.adapt(model, "supervised")
    found = []
    for x, y in batches:
        adapted.reveal(y)
        found.append(adapted(x))
    check(found, expected)
    adapted.reveal(torch.full_like(y, 255))
    adapted(x)
    assert adapted.counts.skipped == {"nothing_selected": 1}
