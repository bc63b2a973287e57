"""`steady` against the plain version, and what must hold for it."""

from __future__ import annotations

import copy
import functools

import pytest
import torch

import acclimate
from acclimate.artifact import Artifact
from acclimate.functional.stream_norm import PROBE
from acclimate.parts import Penalty, Prototypes
from acclimate.testing.models import tiny_batches, tiny_model
from tests.reference import oracles_steady as oracles

SMALL = (6, 5, 1, 6, 2, 6)
LARGE = (PROBE + 6, 20, 3, PROBE + 6, 40)


@functools.cache
def material(name, sureness):
    """Return a tiny model that is sure of its predictions, or not, and its artifact."""
    model = tiny_model(name).double()
    with torch.no_grad():
        x = torch.cat([x for x, _ in tiny_batches(4, dtype=torch.float64)])
        model.head.weight.mul_(sureness)
        model.head.bias.zero_()
        model.head.bias.sub_(model(x).mean(dim=0))
    artifact = acclimate.prepare(
        model,
        tiny_batches(4, dtype=torch.float64),
        parts=[
            Penalty(n_samples=16),
            Prototypes(depth=2, width=6, hidden=8, epochs=1),
            *("mirror", "confidence"),
        ],
    )
    # Whether the mirror image is used does not depend on how well a tiny model does.
    same = {"mirror/mirrored": artifact.tensors["mirror/accuracy"].clone()}
    return model, Artifact({**artifact.tensors, **same}, artifact.card)


def stream(sizes, dtype=torch.float64):
    x = torch.cat([x for x, _ in tiny_batches(30, seed=5, dtype=dtype)])[: sum(sizes)]
    x = x * torch.linspace(1, 0.4, len(x), dtype=dtype)[:, None, None, None]  # it gets darker
    return list(x.split(list(sizes)))


def plainly(name, sureness, sizes, log=None, **options):
    model, artifact = material(name, sureness)
    weights = {key: value.double() for key, value in artifact.part("projector").items()}

    def project(features):
        z = features @ weights["0.weight"].T + weights["0.bias"]
        z = (z - weights["1.running_mean"]) / (weights["1.running_var"] + 1e-5) ** 0.5
        z = (z * weights["1.weight"] + weights["1.bias"]).clamp_min(0)
        return z @ weights["3.weight"].T + weights["3.bias"]

    config = acclimate.get_method("steady").config_class(**options)
    prototypes = artifact.part("prototypes")["embedding"].double()
    penalty = artifact.part("penalty")
    loss = float(artifact.part("confidence")["loss"])
    return oracles.steady(
        model, stream(sizes), penalty, prototypes, project, log, loss, **config.to_dict()
    )


def adapt(name, sureness, **options):
    model, artifact = material(name, sureness)
    return acclimate.adapt(copy.deepcopy(model), "steady", artifact, **options)


CASES = {
    "small": (1.0, SMALL, {"lr": 1.0}),
    "large": (1.0, LARGE, {"lr": 0.1, "reach": 1.0, "filter_labels": False}),
    "one view": (1.0, SMALL, {"lr": 1.0, "mirror": False}),
    "undamped": (1.0, SMALL, {"lr": 1.0, "damping": 0.0, "consistency": 0.0}),
    "reach": (1.0, SMALL, {"lr": 1.0, "reach": 1e-3}),
    "sure": (40.0, LARGE, {"lr": 4.0, "reach": 4.0, "filter_labels": False}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["batch_norm", "group_norm"])
def test_steady(name, case):
    sureness, sizes, options = CASES[case]
    log = []
    adapted = adapt(name, sureness, **options)
    expected = plainly(name, sureness, sizes, log, **options)
    first = {key: p.detach().clone() for key, p in adapted.model.named_parameters()}
    for x, (logits, weights) in zip(stream(sizes), expected, strict=True):
        found = adapted(x)
        assert torch.allclose(found.exp(), logits.exp(), rtol=0, atol=1e-6)
        for key, parameter in adapted.model.named_parameters():
            assert torch.allclose(parameter, weights[key], rtol=0, atol=1e-7), key
    assert adapted.counts.updates == len(sizes)
    events = {event for event, _ in log}
    assert ("reached" in events) == (case == "reach")
    assert ("held" in events) == (case == "sure")
    assert ("benefit" in events) == (name == "batch_norm")
    moved = [
        float((p.detach() - first[key]).abs().max()) for key, p in adapted.model.named_parameters()
    ]
    assert max(moved) > 1e-4  # a thousand times what is tolerated


def test_a_class_that_nobody_predicts_does_not_stop_learning():
    model, artifact = material("batch_norm", 1.0)
    model = copy.deepcopy(model).float()
    with torch.no_grad():
        model.head.bias[2] = -1e4
    parts = [Penalty(n_samples=16), Prototypes(depth=0, epochs=1), "mirror", "confidence"]
    artifact = acclimate.prepare(model, tiny_batches(4), parts=parts)
    adapted = acclimate.adapt(model, "steady", artifact)
    for x in stream(SMALL, torch.float32):
        adapted(x)
    assert adapted.counts.updates == len(SMALL)
    assert not adapted.counts.skipped


def test_a_term_may_train_parameters_of_its_own():
    terms = [acclimate.Nsp(train_projector=True)]
    adapted = adapt("batch_norm", 1.0, terms=terms, lr=1.0)
    before = adapted.terms["nsp"].projector[0].weight.detach().clone()
    for x in stream(SMALL):
        adapted(x)
    assert not torch.equal(adapted.terms["nsp"].projector[0].weight, before)


class Both(torch.nn.Module):
    """A model that also returns what it was given."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return {"logits": self.model(x), "images": x}


def test_the_output_is_that_of_the_whole_batch():
    model = Both(tiny_model("batch_norm"))
    parts = [Penalty(n_samples=16), Prototypes(depth=0, epochs=1), "mirror", "confidence"]
    artifact = acclimate.prepare(model, tiny_batches(4), parts=parts)
    adapted = acclimate.adapt(model, "steady", artifact)
    for x in stream((PROBE + 6, PROBE + 6), torch.float32):
        found = adapted(x)
        assert torch.equal(found["images"], x)
        assert len(found["logits"]) == len(x)
    assert adapted.counts.updates == 2
