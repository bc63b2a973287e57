"""Methods against the plain versions of `oracles.py`."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import acclimate
from acclimate import ModelInfo, Penalty, Prototypes
from acclimate.functional.views import apply_views, get_views
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import warns
from tests.reference import oracles

MODELS = ["batch_norm", "group_norm", "vit", "tied"]


def stream(dtype, n=5):
    return [x for x, _ in tiny_batches(n, seed=3, dtype=dtype)]


def run(adapted, xs):
    return [adapted(x) for x in xs]


def close(found, expected, tolerance):
    return all((a - b).abs().max() <= tolerance for a, b in zip(found, expected, strict=True))


def encode(model, x):
    """Features and logits, by a hook that stays for one call."""
    taken = []
    hook = model.head.register_forward_hook(lambda _, inputs, __: taken.append(inputs[0]))
    logits = model(x)
    hook.remove()
    return taken[0], logits


@pytest.mark.parametrize(("dtype", "n", "tolerance"), [("float64", 5, 1e-8), ("float32", 1, 1e-5)])
@pytest.mark.parametrize("name", MODELS)
def test_tent(name, dtype, n, tolerance):
    model = tiny_model(name).to(getattr(torch, dtype))
    xs = stream(getattr(torch, dtype), n)
    is_norm = {
        "batch_norm": lambda key: "norm" in key,
        "group_norm": lambda key: "norm" in key,
        "vit": lambda key: "norm" in key,
        "tied": lambda key: key.startswith("stem.2"),
    }[name]
    expected = list(oracles.tent(model, xs, is_norm))
    assert close(run(acclimate.adapt(model, "tent"), xs), expected, tolerance)


def test_tent_uses_batch_statistics_whatever_the_mode_of_the_model():
    model = tiny_model("batch_norm").double()
    xs = stream(torch.float64)
    expected = list(oracles.tent(model, xs, lambda key: "norm" in key))
    adapted = acclimate.adapt(model, "tent")
    adapted.model.eval()
    assert close(run(adapted, xs), expected, 1e-8)


def test_tent_uses_batch_statistics_after_eval():
    model = tiny_model("batch_norm").double()
    xs = stream(torch.float64)
    plain = oracles.batch_mode(model)
    expected = [plain(x).detach() for x in xs]  # of the source: it does not learn any more
    adapted = acclimate.adapt(model, "tent").eval()
    with warns("eval_mode"):
        found = run(adapted, xs)
    assert close(found, expected, 1e-8)


def test_norm_is_the_training_mode_of_batch_norm():
    model = tiny_model("batch_norm").double()
    xs = stream(torch.float64)
    plain = oracles.batch_mode(model)
    expected = [plain(x).detach() for x in xs]
    assert close(run(acclimate.adapt(model, "norm"), xs), expected, 1e-12)


def test_source_is_the_model_in_evaluation_mode():
    model = tiny_model("batch_norm")
    xs = stream(torch.float32)
    expected = [model(x).detach() for x in xs]
    found = run(acclimate.adapt(copy.deepcopy(model), "source"), xs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@functools.cache
def prepared(name, dtype="float64", depth=0, **penalty):
    """The artifact of a tiny model; made once, and only read."""
    dtype = getattr(torch, dtype)
    return acclimate.prepare(
        tiny_model(name).to(dtype),
        tiny_batches(6, dtype=dtype),
        parts=[
            Penalty(n_samples=32, **penalty),
            Prototypes(depth=depth, width=6, hidden=10, epochs=2),
            "features",
        ],
    )


def plain_projector(artifact, depth, statistics):
    """The projector by hand: Linear, BatchNorm, ReLU, Linear."""
    if depth == 0:
        return lambda h: h
    w = {key.removeprefix("projector/"): t for key, t in artifact.tensors.items()}

    def project(h):
        h = h @ w["0.weight"].T + w["0.bias"]
        mean, variance = h.mean(0), ((h - h.mean(0)) ** 2).mean(0)
        if statistics == "source":
            mean, variance = w["1.running_mean"], w["1.running_var"]
        h = (h - mean) / (variance + 1e-5).sqrt() * w["1.weight"] + w["1.bias"]
        return h.clamp_min(0) @ w["3.weight"].T + w["3.bias"]

    return lambda h: project(h)


CASES = [
    ({}, {}, 0),
    ({"anchor": "source"}, {"anchor": "source"}, 0),
    ({"detach_target": False}, {"detach": False}, 0),
    ({"consistency": 0.0}, {"s": 0.0}, 0),
    (
        {"strength": 0.0, "aux_confidence": 0.3, "temperature": 0.5},
        {"r": 0.0, "a1": 0.3, "tau": 0.5},
        0,
    ),
    ({"projector_statistics": "batch"}, {}, 2),
    ({"projector_statistics": "source"}, {}, 2),
    ({"optimizer": "sgd", "lr": 1e-2}, {"sgd": True}, 0),
    ({"speed": acclimate.Speed(view_share=0.5)}, {"view_of_every": 2}, 0),
    (
        {"speed": acclimate.Speed(view_share=0.5), "detach_target": False},
        {"view_of_every": 2, "detach": False},
        2,
    ),
]


@pytest.mark.parametrize(("options", "weights", "depth"), CASES)
@pytest.mark.parametrize("name", MODELS)
def test_swr_nsp(name, options, weights, depth):
    model = tiny_model(name).double()
    artifact = prepared(name, depth=depth)
    check_swr_nsp(model, artifact, options, weights, depth, torch.float64, 5, 1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_swr_nsp_in_single_precision(name):
    artifact = prepared(name, "float32")
    check_swr_nsp(tiny_model(name), artifact, {}, {}, 0, torch.float32, 1, 1e-5)


@pytest.mark.parametrize("granularity", ["module", "channel", "parameter"])
def test_swr_nsp_with_finer_penalties(granularity):
    model = tiny_model("batch_norm").double()
    artifact = prepared("batch_norm", granularity=granularity)
    check_swr_nsp(model, artifact, {}, {}, 0, torch.float64, 5, 1e-8)


def check_swr_nsp(model, artifact, options, weights, depth, dtype, n, tolerance):
    xs = stream(dtype, n)
    draws = torch.Generator().manual_seed(5)
    statistics = options.get("projector_statistics", "batch")
    expected = list(
        oracles.swr_nsp(
            model,
            xs,
            lambda x: apply_views(get_views("test"), x, None, draws),
            encode,
            {key: value.to(dtype) for key, value in artifact.part("penalty").items()},
            artifact.part("prototypes")["embedding"],
            plain_projector(artifact, depth, statistics),
            **weights,
        )
    )
    found = run(acclimate.adapt(model, "swr_nsp", artifact, seed=5, **options), xs)
    assert close(found, expected, tolerance)


def first_moves(strength):
    model = tiny_model("batch_norm").double()
    artifact = prepared("batch_norm")
    adapted = acclimate.adapt(
        model, "swr_nsp", artifact, strength=strength, optimizer="sgd", lr=0.01
    )
    moves = []
    for x in stream(torch.float64, 3):
        before = [p.detach().clone() for p in adapted.model.parameters()]
        adapted(x)
        moves.append(
            [p.detach() - b for p, b in zip(adapted.model.parameters(), before, strict=True)]
        )
    return moves


def test_swr_is_zero_on_the_first_step_and_not_on_the_second():
    """θ* lags one update behind; copied too late, the term would always be zero."""
    free, damped = first_moves(0.0), first_moves(10.0)
    assert all(torch.equal(a, b) for a, b in zip(free[0], damped[0], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(free[1], damped[1], strict=True))


def test_nsp_does_not_reach_the_head():
    model = tiny_model("batch_norm").double()
    artifact = prepared("batch_norm")
    head = model.head.weight.detach().clone()
    adapted = acclimate.adapt(
        model, "swr_nsp", artifact, main_confidence=0.0, main_diversity=0.0, strength=0.0
    )
    stem = model.stem.weight.detach().clone()
    run(adapted, stream(torch.float64, 3))
    assert torch.equal(model.head.weight, head)
    assert not torch.equal(model.stem.weight, stem)


@pytest.mark.parametrize("trains", [True, False])
def test_the_projector_is_frozen_unless_asked(trains):
    model = tiny_model("batch_norm").double()
    artifact = prepared("batch_norm", depth=2)
    adapted = acclimate.adapt(model, "swr_nsp", artifact, train_projector=trains)
    before = copy.deepcopy(adapted.terms["nsp"].projector.state_dict())
    run(adapted, stream(torch.float64, 2))
    weight = adapted.terms["nsp"].projector.state_dict()["0.weight"]
    assert torch.equal(weight, before["0.weight"]) != trains
    adapted.reset()
    assert torch.equal(adapted.terms["nsp"].projector.state_dict()["0.weight"], before["0.weight"])


def test_normalised_inputs_see_the_same_views():
    """A model that normalises inside and one that gets normalised inputs behave alike."""
    normal = ((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    mean, std = torch.tensor(normal, dtype=torch.float64)
    inner = tiny_model("batch_norm").double()

    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = copy.deepcopy(inner)

        def forward(self, x):
            return self.net((x - mean.view(3, 1, 1)) / std.view(3, 1, 1))

    def outside(x):
        return (x - mean.view(3, 1, 1)) / std.view(3, 1, 1)

    batches = tiny_batches(6, dtype=torch.float64)
    parts = [Penalty(n_samples=16), "prototypes", "features"]
    plain = acclimate.prepare(Inside(), batches, parts=parts)
    given = acclimate.prepare(
        inner,
        [(outside(x), y) for x, y in batches],
        parts=parts,
        info=ModelInfo(normalization=normal),
    )
    xs = stream(torch.float64)
    left = run(acclimate.adapt(Inside(), "swr_nsp", plain), xs)
    right = run(acclimate.adapt(inner, "swr_nsp", given), [outside(x) for x in xs])
    assert close(left, right, 1e-9)
