"""Main loss, terms, and terms laid over other methods, against the plain versions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import acclimate
from acclimate.errors import InvalidConfig
from acclimate.functional.penalty import shape_penalties
from acclimate.functional.views import apply_views, get_views
from acclimate.methods import METHODS
from acclimate.methods.composition import NspOptions, SwrOptions
from acclimate.methods.config import PRESETS
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises
from tests.reference import oracles
from tests.reference.test_methods import close, encode, prepared, run, stream

PRECISIONS = [("float64", 5, 1e-8), ("float32", 1, 1e-5)]
NO_NSP = {"a1": 0.0, "a2": 0.0, "s": 0.0}
#: Which weights of the paper's loss a method has.
WEIGHTS = {
    "entropy": {"m1": 1.0, "m2": 0.0, "r": 0.0, **NO_NSP},
    "infomax": {"r": 0.0, **NO_NSP},
    "swr": NO_NSP,
    "nsp": {"r": 0.0},
}


def plain_views(seed, which="test"):
    draws = torch.Generator().manual_seed(seed)
    return lambda x: apply_views(get_views(which), x, None, draws)


@pytest.mark.parametrize(("dtype", "n", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("name", ["batch_norm", "vit"])
@pytest.mark.parametrize("method", WEIGHTS)
def test_parts_of_the_paper(method, name, dtype, n, tolerance):
    model = tiny_model(name).to(getattr(torch, dtype))
    artifact = prepared(name, dtype)
    xs = stream(getattr(torch, dtype), n)
    expected = list(
        oracles.swr_nsp(
            model,
            xs,
            plain_views(5),
            encode,
            {key: value.to(model.head.weight) for key, value in artifact.part("penalty").items()},
            artifact.part("prototypes")["embedding"],
            lambda h: h,
            **WEIGHTS[method],
        )
    )
    needed = artifact if METHODS[method].needs else None
    assert close(run(acclimate.adapt(model, method, needed, seed=5), xs), expected, tolerance)


def plain_tent(model, xs, artifact, strength, with_nsp, views):
    """Entropy over the normalisation layers, with SWR through autograd and NSP by hand."""
    model = oracles.batch_mode(model)
    chosen = {name: p for name, p in model.named_parameters() if "norm" in name}
    weights = {key: float(value) for key, value in artifact.part("penalty").items()}
    prototypes = artifact.part("prototypes")["embedding"]
    adam, before_last = oracles.PlainAdam(list(chosen.values())), None

    def nearest(features):
        norms = features.norm(dim=1, keepdim=True) * prototypes.norm(dim=1)
        return (features @ prototypes.T / norms / 0.1).softmax(dim=1)

    for x in xs:
        features, logits = encode(model, x)
        loss = oracles.plain_entropy(logits.softmax(dim=1)).mean()
        if with_nsp:
            q, view = nearest(features), nearest(encode(model, views(x))[0])
            loss = loss + 0.8 * oracles.plain_entropy(q).mean()
            loss = loss - 0.25 * oracles.plain_entropy(q.mean(0)[None])[0]
            loss = loss - 0.1 * (q.detach() * view.log()).sum(dim=1).mean()
        if before_last is not None:
            for (key, parameter), old in zip(chosen.items(), before_last, strict=True):
                loss = loss + strength * weights[key] * ((parameter - old) ** 2).sum()
        yield logits.detach()
        gradients = torch.autograd.grad(loss, list(chosen.values()))
        before_last = [p.detach().clone() for p in chosen.values()]
        adam.step(gradients)


@pytest.mark.parametrize("name", ["batch_norm", "vit"])
@pytest.mark.parametrize("auxiliary", [None, "nsp"])
def test_terms_laid_over_tent(name, auxiliary):
    model = tiny_model(name).double()
    artifact = prepared(name)
    xs = stream(torch.float64)
    expected = list(plain_tent(model, xs, artifact, 40.0, auxiliary is not None, plain_views(5)))
    adapted = acclimate.adapt(
        model,
        "tent",
        artifact,
        regularizer=SwrOptions(strength=40.0),
        auxiliary=auxiliary,
        seed=5,
    )
    assert close(run(adapted, xs), expected, 1e-8)


@pytest.mark.parametrize(("dtype", "n", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("name", ["batch_norm", "vit"])
def test_swr_fixmatch(name, dtype, n, tolerance):
    model = tiny_model(name).to(getattr(torch, dtype))
    artifact = prepared(name, dtype)
    xs = stream(getattr(torch, dtype), n)
    plain = oracles.batch_mode(model)
    named = dict(plain.named_parameters())
    adam, before_last = oracles.PlainAdam(list(named.values())), None
    views, expected, n_chosen = plain_views(5, "projector"), [], 0
    sure = plain(xs[0]).detach().softmax(dim=1).max(dim=1).values.sort().values
    threshold = float(sure[3:5].mean())  # between two samples, so that half of them are chosen
    for x in xs:
        logits = plain(x)
        p = logits.softmax(dim=1)
        loss = 0.2 * oracles.plain_entropy(p).mean()
        loss = loss - 0.25 * oracles.plain_entropy(p.mean(0)[None])[0]
        strong = plain(views(x)).softmax(dim=1)
        for i in range(len(x)):
            if p[i].max() >= threshold:
                n_chosen += 1
                loss = loss - strong[i, p[i].argmax()].log() / len(x)
        if before_last is not None:
            for (key, parameter), old in zip(named.items(), before_last, strict=True):
                weight = artifact.part("penalty")[key].to(parameter)
                loss = loss + 250 * weight * ((parameter - old) ** 2).sum()
        expected.append(logits.detach())
        gradients = torch.autograd.grad(loss, list(named.values()))
        before_last = [p.detach().clone() for p in named.values()]
        adam.step(gradients)
    assert 0 < n_chosen < sum(map(len, xs))
    adapted = acclimate.adapt(model, "swr_fixmatch", artifact, threshold=threshold, seed=5)
    assert close(run(adapted, xs), expected, tolerance)


@pytest.mark.parametrize(("dtype", "n", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("name", ["batch_norm", "vit"])
def test_supervised(name, dtype, n, tolerance):
    model = tiny_model(name).to(getattr(torch, dtype))
    batches = tiny_batches(n, seed=3, dtype=getattr(torch, dtype))
    plain = oracles.batch_mode(model)
    parameters = list(plain.parameters())
    adam, expected = oracles.PlainAdam(parameters), []
    for x, y in batches:
        logits = plain(x)
        expected.append(logits.detach())
        adam.step(torch.autograd.grad(F.cross_entropy(logits, y), parameters))
    adapted = acclimate.adapt(model, "supervised")
    found = []
    for x, y in batches:
        adapted.reveal(y)
        found.append(adapted(x))
    assert close(found, expected, tolerance)


def test_no_label_reaches_a_method_by_accident():
    model = tiny_model("batch_norm")
    x, y = tiny_batches(1)[0]
    adapted = acclimate.adapt(model, "supervised")
    with raises("labels_needed"):
        adapted(x)
    adapted.unwrap()
    for name in METHODS:
        if not METHODS[name].is_oracle and not METHODS[name].needs:
            break
    with raises("labels_refused", method=name):
        acclimate.adapt(model, name).reveal(y)


def test_labels_are_forgotten_after_their_batch():
    x, y = tiny_batches(1)[0]
    adapted = acclimate.adapt(tiny_model("batch_norm"), "supervised")
    adapted.reveal(y)
    adapted(x)
    with raises("labels_needed"):
        adapted(x)


def test_the_predictor_can_be_the_nearest_prototype():
    model = tiny_model("batch_norm").double()
    artifact = prepared("batch_norm")
    xs = stream(torch.float64, 3)
    by_head = acclimate.adapt(model, "swr_nsp", artifact, seed=5)
    run(by_head, xs[:2])
    state = {name: p.detach().clone() for name, p in by_head.model.named_parameters()}
    by_head.unwrap()
    adapted = acclimate.adapt(model, "swr_nsp", artifact, seed=5, predictor="prototypes")
    found = run(adapted, xs[:2])
    # It learns the same, and predicts with the prototypes.
    for name, parameter in adapted.model.named_parameters():
        assert torch.equal(parameter, state[name])
    adapted.reset()
    features, _ = encode(oracles.batch_mode(model), xs[0])
    prototypes = artifact.part("prototypes")["embedding"]
    cosine = F.cosine_similarity(features[:, None], prototypes[None], dim=2) / 0.1
    assert close([found[0]], [cosine.detach()], 1e-8)


@pytest.mark.parametrize("shape", ["vertical_flip", "horizontal_flip", "linear", "square", "step"])
def test_shapes_of_the_penalties(shape):
    model = tiny_model("batch_norm").double()
    artifact = prepared("batch_norm")
    names = [name for name, _ in model.named_parameters()]
    measured = [float(artifact.part("penalty")[name]) for name in names]
    last = len(names) - 1
    expected = {
        "vertical_flip": [1 - w for w in measured],
        "horizontal_flip": measured[::-1],
        "linear": [i / last for i in range(last + 1)],
        "square": [(i / last) ** 2 for i in range(last + 1)],
        "step": [float(i / last >= 0.5) for i in range(last + 1)],
    }[shape]
    adapted = acclimate.adapt(model, "swr", artifact, shape=shape, strength=1.0)
    for name, value in zip(names, expected, strict=True):
        assert adapted.regularizer._numbers[name] == pytest.approx(2 * value, abs=1e-12)


def test_another_exponent_without_preparing_again():
    model = tiny_model("batch_norm").double()
    asked = acclimate.adapt(model, "swr", prepared("batch_norm"), exponent=3.0)
    penalty = prepared("batch_norm", exponent=3.0).part("penalty")
    expected = {name: 500 * float(w) for name, w in penalty.items()}
    assert asked.regularizer._numbers == pytest.approx(expected)


def test_shapes_need_one_penalty_a_tensor():
    with raises("conflicting_options", options=("shape", "granularity")):
        shape_penalties({"a": torch.ones(3)}, "horizontal_flip")


@pytest.mark.parametrize(
    ("method", "options", "code", "data"),
    [
        ("norm", {"regularizer": "swr"}, "no_gradient_steps", {"method": "norm"}),
        ("swr_nsp", {"regularizer": "swr"}, "duplicate", {"name": "regularizer"}),
        ("nsp", {"auxiliary": NspOptions()}, "duplicate", {"name": "auxiliary"}),
        (
            "tent",
            {"regularizer": "swrr"},
            "unknown_name",
            {"kind": "regularizer", "name": "swrr", "known": ("swr",)},
        ),
    ],
)
def test_what_cannot_be_composed_is_refused(method, options, code, data):
    with raises(code, InvalidConfig, **data):
        acclimate.adapt(
            tiny_model("batch_norm"), method, prepared("batch_norm", "float32"), **options
        )


def test_terms_need_their_parts():
    with raises("artifact_needed", methods=("tent",)):
        acclimate.adapt(tiny_model("batch_norm"), "tent", regularizer="swr")


def test_presets():
    model = tiny_model("batch_norm")
    artifact = prepared("batch_norm", "float32")
    adapted = acclimate.adapt(model, "swr_nsp", artifact, preset="imagenet", lr=1e-5)
    assert (adapted.config.strength, adapted.config.optimizer) == (3000.0, "sgd")
    assert adapted.config.lr == 1e-5
    adapted.unwrap()
    with raises("unknown_name", kind="preset", name="imagenett", known=PRESETS):
        acclimate.adapt(model, "tent", preset="imagenett")
    for method in METHODS.values():
        for preset in PRESETS:
            method.config_class.from_preset(preset)
