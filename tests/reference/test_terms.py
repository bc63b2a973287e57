"""Main loss, terms, and terms added to other methods, against the plain versions."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F

import acclimate
from acclimate import FisherPenalty, Nsp, Penalty, Prototypes, Swr
from acclimate.errors import InvalidConfig
from acclimate.functional.swr_nsp import shape_penalties
from acclimate.functional.views import apply_views, get_views
from acclimate.methods import METHODS
from acclimate.options import PRESETS
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises
from tests.reference import oracles, oracles_selective
from tests.reference.selective_models import is_norm, sharp_model
from tests.reference.selective_models import stream as sharp_stream
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


class PlainTerms:
    """SWR through autograd, NSP by hand and the Fisher penalty: what they add to a loss.

    Args:
        artifact: Of the model.
        views: x -> transformed x; called once an update, if there is NSP.
        swr: Strength of SWR.
        nsp: Weight of the whole of NSP.
        fisher: Weight of the Fisher penalty.
    """

    def __init__(self, artifact, views=None, swr=0.0, nsp=0.0, fisher=0.0):
        self.artifact, self.views = artifact, views
        self.swr, self.nsp, self.fisher = swr, nsp, fisher
        self.source = self.before_last = None

    def __call__(self, model, x):
        named = {name: p for name, p in model.named_parameters() if is_norm(name)}
        now = {name: p.detach().clone() for name, p in named.items()}
        if self.source is None:
            self.source = now
        loss = torch.zeros((), dtype=x.dtype)
        if self.fisher:
            information = self.artifact.part("fisher")
            for name, p in named.items():
                distance = information[name] * (p - self.source[name]) ** 2
                loss = loss + self.fisher * distance.sum()
        if self.swr and self.before_last is not None:
            for name, p in named.items():
                weight = float(self.artifact.part("penalty")[name])
                loss = loss + self.swr * weight * ((p - self.before_last[name]) ** 2).sum()
        if self.nsp:
            q = self.nearest(encode(model, x)[0])
            view = self.nearest(encode(model, self.views(x))[0])
            loss = loss + self.nsp * 0.8 * oracles.plain_entropy(q).mean()
            loss = loss - self.nsp * 0.25 * oracles.plain_entropy(q.mean(0)[None])[0]
            loss = loss - self.nsp * 0.1 * (q.detach() * view.log()).sum(dim=1).mean()
        self.before_last = now
        return loss

    def nearest(self, features):
        prototypes = self.artifact.part("prototypes")["embedding"]
        norms = features.norm(dim=1, keepdim=True) * prototypes.norm(dim=1)
        return (features @ prototypes.T / norms / 0.1).softmax(dim=1)


@pytest.mark.parametrize("name", ["batch_norm", "vit"])
@pytest.mark.parametrize("with_nsp", [False, True])
def test_terms_added_to_tent(name, with_nsp):
    model = tiny_model(name).double()
    artifact = prepared(name)
    xs = stream(torch.float64)
    extra = PlainTerms(artifact, plain_views(5), swr=40.0, nsp=float(with_nsp))
    expected = list(oracles.tent(model, xs, is_norm, extra=extra))
    terms = [Swr(strength=40.0), *(["nsp"] if with_nsp else [])]
    adapted = acclimate.adapt(model, "tent", artifact, terms=terms, seed=5)
    assert close(run(adapted, xs), expected, 1e-8)


@functools.cache
def sharp_artifact(name):
    """The artifact of a model whose predictions differ, with the parts of every term."""
    return acclimate.prepare(
        sharp_model(name),
        tiny_batches(6, 16, dtype=torch.float64),
        parts=["fisher", Penalty(n_samples=32), Prototypes(depth=0)],
    )


#: With these, EATA selects some samples of every batch, and leaves some out.
EATA = {"max_entropy": 0.5, "max_similarity": 0.8, "lr": 1e-2, "fisher_weight": 50.0}


@pytest.mark.parametrize("name", ["batch_norm", "vit"])
def test_terms_added_to_eata(name):
    """The method keeps its own term, and the weight scales the whole of NSP."""
    model, xs, log = sharp_model(name), sharp_stream(), []
    artifact = sharp_artifact(name)
    fisher = artifact.part("fisher")

    def plain(**weights):
        extra = PlainTerms(artifact, plain_views(5), **weights)
        options = {**EATA, "fisher": fisher, "log": log, "extra": extra}
        return list(oracles_selective.eata(model, xs, is_norm, **options))

    expected = plain(swr=250.0, nsp=0.5)
    assert any(0 < chosen < 16 for chosen, *_ in log)
    for other in ({"swr": 250.0, "nsp": 1.0}, {"nsp": 0.5}, {"swr": 250.0}):
        assert not close(plain(**other), expected, 1e-6)
    terms = ["swr", Nsp(weight=0.5)]
    adapted = acclimate.adapt(model, "eata", artifact, terms=terms, seed=5, **EATA)
    assert close(run(adapted, xs), expected, 1e-8)
    assert list(adapted.terms) == ["fisher", "swr", "nsp"]


@pytest.mark.parametrize("name", ["batch_norm", "vit"])
def test_the_fisher_penalty_added_to_tent(name):
    model, xs = sharp_model(name), sharp_stream()
    artifact = sharp_artifact(name)
    extra = PlainTerms(artifact, fisher=50.0)
    expected = list(oracles.tent(model, xs, is_norm, lr=1e-2, extra=extra))
    assert not close(list(oracles.tent(model, xs, is_norm, lr=1e-2)), expected, 1e-6)
    terms = [FisherPenalty(weight=50.0)]
    adapted = acclimate.adapt(model, "tent", artifact, terms=terms, lr=1e-2)
    assert close(run(adapted, xs), expected, 1e-8)


@pytest.mark.parametrize("name", ["batch_norm", "vit"])
def test_eta_with_the_fisher_penalty_is_eata(name):
    xs, artifact = sharp_stream(), sharp_artifact(name)
    options = {key: value for key, value in EATA.items() if key != "fisher_weight"}
    terms = [FisherPenalty(weight=EATA["fisher_weight"])]
    left = acclimate.adapt(sharp_model(name), "eta", artifact, terms=terms, **options)
    right = acclimate.adapt(sharp_model(name), "eata", artifact, **EATA)
    assert all(map(torch.equal, run(left, xs), run(right, xs)))


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
        if not METHODS[name].card.is_oracle and not METHODS[name].needs:
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
        assert adapted.terms["swr"]._numbers[name] == pytest.approx(2 * value, abs=1e-12)


def test_another_exponent_without_preparing_again():
    model = tiny_model("batch_norm").double()
    asked = acclimate.adapt(model, "swr", prepared("batch_norm"), exponent=3.0)
    penalty = prepared("batch_norm", exponent=3.0).part("penalty")
    expected = {name: 500 * float(w) for name, w in penalty.items()}
    assert asked.terms["swr"]._numbers == pytest.approx(expected)


def test_shapes_need_one_penalty_a_tensor():
    with raises("conflicting_options", options=("shape", "granularity")):
        shape_penalties({"a": torch.ones(3)}, "horizontal_flip")


@pytest.mark.parametrize(
    ("method", "terms", "code", "data"),
    [
        ("norm", ["swr"], "no_gradient_steps", {"method": "norm"}),
        ("t3a", [Nsp()], "no_gradient_steps", {"method": "t3a"}),
        ("memo", ["swr"], "no_gradient_steps", {"method": "memo"}),
        ("memo", [Nsp()], "no_gradient_steps", {"method": "memo"}),
        ("swr_nsp", ["swr"], "duplicate", {"name": "swr"}),
        ("nsp", [Nsp()], "duplicate", {"name": "nsp"}),
        ("eata", [FisherPenalty(weight=2.0)], "duplicate", {"name": "fisher"}),
        ("tent", ["swr", Swr(strength=1.0)], "duplicate", {"name": "swr"}),
        ("tent", ["nsp", "swr", "nsp"], "duplicate", {"name": "nsp"}),
        (
            "tent",
            ["swrr"],
            "unknown_name",
            {"kind": "term", "name": "swrr", "known": {"fisher", "nsp", "swr"}.issubset},
        ),
        ("tent", [250.0], "wrong_type", {"option": "terms", "found": "float"}),
    ],
)
def test_terms_that_cannot_be_added_are_refused(method, terms, code, data):
    with raises(code, InvalidConfig, **data):
        acclimate.adapt(
            tiny_model("batch_norm"), method, prepared("batch_norm", "float32"), terms=terms
        )


def test_terms_need_their_parts():
    model = tiny_model("batch_norm")
    with raises("artifact_needed", methods=("tent",)):
        acclimate.adapt(model, "tent", terms=["swr"])
    with raises("missing_parts", parts=("fisher",)):
        acclimate.adapt(model, "tent", prepared("batch_norm", "float32"), terms=["fisher", "swr"])


def test_presets():
    model = tiny_model("batch_norm")
    artifact = prepared("batch_norm", "float32")
    adapted = acclimate.adapt(model, "swr_nsp", artifact, preset="imagenet", lr=1e-5)
    assert (adapted.config.strength, adapted.config.optimizer) == (3000.0, "sgd")
    assert adapted.config.lr == 1e-5
    adapted.unwrap()
    known = tuple(METHODS["tent"].config_class.presets)
    with raises("unknown_name", kind="preset", name="imagenett", known=known):
        acclimate.adapt(model, "tent", preset="imagenett")


@pytest.mark.parametrize("method", METHODS)
def test_presets_are_those_with_published_values(method):
    config = METHODS[method].config_class
    assert set(config.presets) <= set(PRESETS)
    for preset in PRESETS:
        if preset in config.presets:
            config.from_preset(preset)
            continue
        with raises("unknown_name", kind="preset", name=preset, known=tuple(config.presets)):
            config.from_preset(preset)
