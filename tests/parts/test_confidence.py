"""The part `confidence`: the loss of confidence by loops over batches."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import acclimate
from acclimate.functional.stream_norm import LARGEST, MEMORY, PRIOR, TOLERANCE
from acclimate.parts.confidence import Confidence
from acclimate.testing.models import tiny_batches, tiny_model


def plain_loss(model, batches):
    """Return the mean confidence as the model is, less that with mixed statistics."""
    mixed = copy.deepcopy(model).eval()
    share = LARGEST * 4 * MEMORY / (4 * MEMORY + PRIOR)
    total = n = 0
    for x in torch.cat([x for x, _ in batches]).split(64):
        hooks = []
        for layer in mixed.modules():
            if isinstance(layer, nn.BatchNorm2d):

                def renew(layer, inputs, _output):
                    (maps,) = inputs
                    mean = share * maps.mean((0, 2, 3)) + (1 - share) * layer.running_mean
                    variance = share * maps.var((0, 2, 3), correction=0)
                    variance = variance + (1 - share) * layer.running_var
                    return nn.functional.batch_norm(
                        maps, mean, variance, layer.weight, layer.bias, eps=layer.eps
                    )

                hooks.append(layer.register_forward_hook(renew))
        with torch.no_grad():
            there = mixed(x).softmax(dim=1).amax(dim=1)
        for hook in hooks:
            hook.remove()
        with torch.no_grad():
            here = mixed(x).softmax(dim=1).amax(dim=1)
        total += float((here - there).sum())
        n += len(x)
    return total / n


def test_the_loss_is_that_of_loops():
    model, batches = tiny_model("batch_norm"), tiny_batches(3)
    artifact = acclimate.prepare(model, batches, parts=["confidence"])
    expected = plain_loss(model, batches)
    assert abs(expected) > 1e-5
    assert float(artifact.part("confidence")["loss"]) == pytest.approx(expected, abs=1e-6)
    assert artifact.parts["confidence"]["n_samples"] == sum(len(x) for x, _ in batches)


def test_it_stops_at_the_number_of_samples():
    batches = tiny_batches(4)
    size = len(batches[0][0])
    artifact = acclimate.prepare(
        tiny_model("batch_norm"), batches, parts=[Confidence(n_samples=size)]
    )
    assert artifact.parts["confidence"]["n_samples"] <= max(size, 64)


def test_models_without_batch_norm_lose_nothing():
    artifact = acclimate.prepare(tiny_model("group_norm"), tiny_batches(2), parts=["confidence"])
    assert float(artifact.part("confidence")["loss"]) == 0


@pytest.mark.parametrize(("loss", "tolerance"), [(0.1, TOLERANCE + 0.1), (-0.1, TOLERANCE)])
def test_what_source_images_lose_is_tolerated(loss, tolerance):
    model = tiny_model("batch_norm")
    artifact = acclimate.prepare(model, tiny_batches(2), parts=["confidence"])
    artifact.tensors["confidence/loss"].fill_(loss)
    adapted = acclimate.adapt(model, "norm", artifact, statistics="auto")
    adapted.stream = {"n": 1.0, "moments": {}, "benefit": -tolerance, "styles": None}
    assert adapted.trust == pytest.approx(1.0)
    adapted.stream = {**adapted.stream, "benefit": -2 * tolerance}
    assert adapted.trust == pytest.approx(0.25)
    plain = acclimate.adapt(adapted.unwrap(), "norm", statistics="auto")
    plain.stream = {"n": 1.0, "moments": {}, "benefit": -2 * TOLERANCE, "styles": None}
    assert plain.trust == pytest.approx(0.25)
