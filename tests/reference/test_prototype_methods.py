"""T3A, LAME and SHOT against the plain versions, and what must hold for them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import acclimate
from acclimate import ModelInfo
from acclimate.methods import METHODS
from acclimate.methods.lame import Lame
from acclimate.methods.shot import Shot
from acclimate.methods.t3a import T3a
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises
from tests.reference import oracles_prototype_methods as oracles

for _method in (T3a, Lame, Shot):
    METHODS.setdefault(_method.name, _method)

PRECISIONS = [(torch.float64, 5, 1e-8), (torch.float32, 1, 1e-5)]
MODELS = ["batch_norm", "vit", "tied"]


def opinionated(name, dtype=torch.float64):
    """A tiny model that predicts every class for some samples, some surely and some not."""
    model = tiny_model(name)
    x = torch.cat([x for x, _ in tiny_batches(4, 16, seed=3)])
    with torch.no_grad():
        features, _ = oracles.look(model, x)
        features = features - features.mean(0)
        scale = (features @ model.head.weight.T).std()
        model.head.weight.mul_(2 / scale)
        model.head.bias.copy_(-(oracles.look(model, x)[0].mean(0) @ model.head.weight.T))
    return model.to(dtype)


def stream(dtype=torch.float64, n=5):
    return [x for x, _ in tiny_batches(n, seed=3, dtype=dtype)]


def run(adapted, xs):
    return [adapted(x) for x in xs]


def close(found, expected, tolerance):
    return all((a - b).abs().max() <= tolerance for a, b in zip(found, expected, strict=True))


# T3A --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "n", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("n_supports", [1, 3, 100])
@pytest.mark.parametrize("name", MODELS)
def test_t3a(name, n_supports, dtype, n, tolerance):
    model, log = opinionated(name, dtype), []
    xs = stream(dtype, n)
    expected = list(oracles.t3a(model, xs, n_supports, log))
    found = run(acclimate.adapt(model, "t3a", n_supports=n_supports), xs)
    assert close(found, expected, tolerance)
    if n == 5 and n_supports == 3:
        assert max(log) > 3  # some supports had to go
        assert sum(count > 0 for count in log[-4:]) > 1


def test_t3a_is_bounded_and_drops_the_least_sure():
    adapted = acclimate.adapt(opinionated("batch_norm"), "t3a", n_supports=2)
    shape = adapted.supports.shape
    for x in stream(n=10):
        before = adapted.entropies
        adapted(x)
        assert (adapted.entropies <= before).all()
    assert adapted.supports.shape == shape == (4, 2, 8)


def test_t3a_predicts_paused_what_it_would_predict_anyway():
    adapted = acclimate.adapt(opinionated("batch_norm"), "t3a", n_supports=3)
    first, second = stream(n=2)
    adapted(first)
    with adapted.paused():
        paused = adapted(second)
    assert torch.equal(paused, adapted(second))


def test_t3a_does_not_keep_what_is_not_finite():
    model = opinionated("batch_norm", torch.float32)
    adapted = acclimate.adapt(model, "t3a", n_supports=3)
    x = stream(torch.float32, 1)[0]
    huge = x.clone()
    huge[0] = 3e38
    adapted(huge)
    assert adapted.supports.isfinite().all()
    assert adapted(x).isfinite().all()


def clear_ones(model, x):
    """Return the samples whose label half precision cannot change (a step above 2 is 0.016)."""
    best, second = model(x).detach().topk(2, dim=1).values.T
    clear = x[best - second > 0.1]
    assert len(clear) > len(x) / 2
    return clear


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_t3a_stands_a_class_without_supports_in_half_precision(dtype):
    model = opinionated("batch_norm", torch.float32)
    with torch.no_grad():
        model.head.bias[2] = -1e4
    xs = [clear_ones(model, x) for x in stream(torch.float32, 2)]
    expected = run(acclimate.adapt(copy.deepcopy(model), "t3a"), xs)
    adapted = acclimate.adapt(model.to(dtype), "t3a")
    found = run(adapted, [x.to(dtype) for x in xs])
    assert not adapted.entropies[2].isfinite().any()
    assert all(logits.dtype == dtype for logits in found)
    assert all(torch.equal(a[:, 2].float(), b[:, 2]) for a, b in zip(found, expected, strict=True))
    assert close([logits.float() for logits in found], expected, 0.1)


def test_t3a_refuses_a_head_that_is_not_linear():
    with raises("wrong_head", head="block"):
        acclimate.adapt(tiny_model("batch_norm"), "t3a", info=ModelInfo(head="block"))


# LAME -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "n", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("kernel", ["rbf", "knn", "linear"])
@pytest.mark.parametrize("name", MODELS)
def test_lame(name, kernel, dtype, n, tolerance):
    if dtype == torch.float32:
        tolerance = 1e-4  # each round adds up the answers of neighbours, with their rounding errors
    model = opinionated(name, dtype)
    # The last two batches are smaller than the number of neighbours asked for.
    xs = [*stream(dtype, n), stream(dtype, 1)[0][:3], stream(dtype, 1)[0][3:5]]
    if name == "batch_norm" and kernel == "rbf":
        xs = [*xs, torch.cat(stream(dtype, 2))]
    expected = list(oracles.lame(model, xs, kernel))
    found = run(acclimate.adapt(model, "lame", kernel=kernel), xs)
    assert close([y.exp() for y in found], [y.exp() for y in expected], tolerance)
    if kernel != "knn":
        changed = [
            (y - model(x).log_softmax(dim=1)).abs().max() for x, y in zip(xs, found, strict=True)
        ]
        assert max(changed) > 0.1


def test_lame_keeps_an_overflowing_sample_from_the_others():
    model = opinionated("batch_norm", torch.float32)
    x = stream(torch.float32, 1)[0]
    adapted = acclimate.adapt(model, "lame")
    expected = adapted(x[1:])
    x[0] = 3e38
    found = adapted(x)
    assert not found[0].isfinite().any()
    assert (found[1:] - expected).abs().max() < 1e-5


def test_lame_of_one_image_keeps_its_label():
    model = opinionated("batch_norm")
    x = stream(n=1)[0]
    labels = model(x).argmax(dim=1)
    adapted = acclimate.adapt(model, "lame")
    assert torch.equal(torch.cat([adapted(image) for image in x.split(1)]).argmax(dim=1), labels)


# SHOT -------------------------------------------------------------------------------------------

SHOTS = [
    ({}, {}),
    ({"pseudo_labels": "none"}, {"labels": "none"}),
    ({"pseudo_weight": 0.3}, {"weight": 0.3}),
    (
        {"pseudo_labels": "queue", "queue_size": 20, "pseudo_weight": 0.3},
        {"labels": "queue", "queue_size": 20, "weight": 0.3},
    ),
]


@pytest.mark.parametrize(("dtype", "n", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("options", "plain"), SHOTS)
@pytest.mark.parametrize("name", MODELS)
def test_shot(name, options, plain, dtype, n, tolerance):
    model, log = opinionated(name, dtype), []
    xs = stream(dtype, n)
    expected = list(oracles.shot(model, xs, log=log, **plain))
    # Its logits are in the tens: the order of summation is already seen in single precision.
    plain_layout = acclimate.Speed(channels_last=False)
    found = run(acclimate.adapt(model, "shot", speed=plain_layout, **options), xs)
    assert close(found, expected, tolerance)
    if n == 5 and log:
        assert any(labels != own for labels, own in log)  # centroids say something of their own
        assert len({label for labels, _ in log for label in labels}) > 1


def test_shot_leaves_the_head_alone_and_moves_the_rest():
    model = opinionated("batch_norm")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    adapted = acclimate.adapt(model, "shot")
    run(adapted, stream())
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {name for name in before if not name.startswith("head.")}


def test_a_queue_of_one_batch_changes_nothing_on_the_first():
    xs = stream(n=2)
    options = {"pseudo_weight": 0.5}
    model = opinionated("batch_norm")
    alone = run(acclimate.adapt(copy.deepcopy(model), "shot", **options), xs)
    queued = run(acclimate.adapt(model, "shot", pseudo_labels="queue", **options), xs)
    assert torch.equal(alone[0], queued[0])
    assert close(alone[1:], queued[1:], 1e-12)  # the queue had nothing when the first was labelled


def test_shot_forgets_samples_that_are_not_finite():
    model = opinionated("tied", torch.float32)
    adapted = acclimate.adapt(model, "shot", pseudo_labels="queue", queue_size=16)
    x = stream(torch.float32, 1)[0]
    adapted(x)
    with torch.no_grad():
        kept = model.head.bias.clone()
        model.head.bias[0] = torch.nan
    adapted(x)
    with torch.no_grad():
        model.head.bias.copy_(kept)
    assert adapted.counts.skipped == {"non_finite": 1}
    assert all(t.isfinite().all() for t in adapted.queue.values())
    assert adapted(x).isfinite().all()
    assert adapted.counts.updates == 2


def test_shot_refuses_a_model_with_a_frozen_encoder():
    model = tiny_model("batch_norm").requires_grad_(False)
    model.head.requires_grad_(True)
    with raises("nothing_to_train"):
        acclimate.adapt(model, "shot")


# Heads ------------------------------------------------------------------------------------------


class Backwards(nn.Module):
    """A net whose last linear layer is not its head."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.body = nn.Linear(12, 6)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)))


class Asked(Backwards):
    """The same, but it says which one is the head."""

    def get_classifier(self):
        return self.head


@pytest.mark.parametrize("method", ["t3a", "lame", "shot"])
def test_a_wrong_guess_is_noticed_and_a_name_helps(method):
    x = torch.rand(5, 3, 2, 2)
    adapted = acclimate.adapt(Backwards(), method)
    with raises("wrong_head", head="body"):
        adapted(x)
    assert acclimate.adapt(Backwards(), method, info=ModelInfo(head="head"))(x).shape == (5, 4)
    assert acclimate.adapt(Asked(), method)(x).shape == (5, 4)


def test_a_model_without_a_linear_layer_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with raises("head_not_found", candidates=()):
        acclimate.adapt(model, "lame")
