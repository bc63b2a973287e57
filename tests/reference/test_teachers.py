"""CoTTA, RoTTA, ROID and MEMO against the plain versions of `oracles_teachers.py`."""

from __future__ import annotations

import copy

import pytest
import torch

import acclimate
from acclimate import ModelInfo
from acclimate.functional.augmentations import CottaAugmentation, augment
from acclimate.functional.augmix import AugMix
from acclimate.functional.norm import use_statistics
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises, warns
from tests.reference import oracles_teachers as oracles

PRECISIONS = [(torch.float64, 5, 1e-8), (torch.float32, 1, 1e-5)]
CASES = [(name, *case) for name in ("batch_norm", "vit") for case in PRECISIONS]
each_case = pytest.mark.parametrize(("name", "dtype", "n", "tolerance"), CASES)


def stream(dtype=torch.float64, n=5, size=8):
    return [x for x, _ in tiny_batches(n, size, seed=3, dtype=dtype)]


def close(found, expected, tolerance):
    pairs = zip(found, expected, strict=True)
    return all((a - b).abs().max() <= tolerance for a, b in pairs)


def is_norm(name):
    return "norm" in name


def seeded(how, seed=5):
    """Return an augmentation with the package's own draws, and their generator."""
    draws = torch.Generator().manual_seed(seed)
    return lambda x: augment(how, x, None, draws), draws


def with_confidence(model, xs):
    with use_statistics(model, "batch"), torch.no_grad():
        return [(float(model(x).softmax(dim=1).amax(dim=1).mean()), x) for x in xs]


# CoTTA -------------------------------------------------------------------------------------------


@each_case
@pytest.mark.parametrize("variant", [{}, {"symmetric": True, "sgd": True}])
def test_cotta(name, dtype, n, tolerance, variant):
    model = tiny_model(name).to(dtype)
    # The least sure batch first: a teacher that predicts the batch itself agrees with the student
    # at the start, and Adam would make steps out of rounding errors.
    sure, xs = zip(*sorted(with_confidence(model, stream(dtype, n))), strict=True)
    threshold = (sure[0] + sure[-1]) / 2 if n > 1 else 1.0
    changed, draws = seeded(CottaAugmentation())
    expected = list(oracles.cotta(model, xs, changed, draws, threshold, 3, 0.1, **variant))
    options = {"confidence": threshold, "n_augmentations": 3, "restore": 0.1}
    if variant:
        options |= {"symmetric": True, "optimizer": "sgd", "lr": 1e-2}
    adapted = acclimate.adapt(model, "cotta", seed=5, **options)
    assert close([adapted(x) for x in xs], [logits for logits, _ in expected], tolerance)
    averaged = [unsure for _, unsure in expected]
    assert set(averaged) == ({True, False} if n > 1 else {True})
    assert adapted.counts.forwards == sum(2 + (3 if unsure else 1) for unsure in averaged)


def test_cotta_restores_everything_or_nothing():
    xs = stream()
    for chance, same in ((1.0, True), (0.0, False)):
        model = tiny_model("batch_norm").double()
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        adapted = acclimate.adapt(model, "cotta", restore=chance, n_augmentations=1)
        [adapted(x) for x in xs]
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters()) == same


@pytest.mark.parametrize(("method", "options"), [("cotta", {"n_augmentations": 2}), ("memo", {})])
def test_a_paused_prediction_is_the_next_one(method, options):
    adapted = acclimate.adapt(tiny_model("batch_norm"), method, **options)
    first, second = stream(torch.float32, 2)
    adapted(first)
    with adapted.paused():
        foreseen = adapted(second)
    assert torch.equal(foreseen, adapted(second))


@pytest.mark.parametrize("method", ["cotta", "rotta", "roid", "memo"])
def test_pixels_outside_of_the_range_are_refused_before_they_are_clipped(method):
    adapted = acclimate.adapt(tiny_model("batch_norm"), method)
    x = 4 * stream(torch.float32, 1)[0] - 2
    with raises("pixel_range", low=x.min().item(), high=x.max().item()):
        adapted(x)


def lively_model(name, dtype):
    """Return a model whose predictions are of all classes, some sure and some not."""
    model = tiny_model(name).to(dtype)
    with torch.no_grad():
        model.head.weight.mul_(40)
        model.head.bias.sub_(model(torch.cat(stream(dtype))).mean(dim=0))
    return model


# RoTTA -------------------------------------------------------------------------------------------


@each_case
def test_rotta(name, dtype, n, tolerance):
    model = lively_model(name, dtype)
    if dtype == torch.float32:
        tolerance = 1e-4  # its logits are 40 times those of the plain models
    xs = stream(dtype, 3 * n if n > 1 else 2)
    changed, _ = seeded(CottaAugmentation())
    log = {}
    expected = list(oracles.rotta(model, xs, changed, is_norm, capacity=6, every=5, log=log))
    adapted = acclimate.adapt(model, "rotta", seed=5, memory_size=6, update_every=5)
    assert close([adapted(x) for x in xs], expected, tolerance)
    assert adapted.counts.updates == 8 * len(xs) // 5
    if n > 1:
        assert min(log.values()) > 0  # some were added, some replaced others, some were refused


def test_rotta_learns_from_single_images_as_from_batches():
    x = torch.cat(stream(n=4))
    options = {"seed": 5, "memory_size": 8, "update_every": 4}
    model = tiny_model("batch_norm").double()
    in_batches = acclimate.adapt(copy.deepcopy(model), "rotta", **options)
    alone = acclimate.adapt(model, "rotta", **options)
    expected = torch.cat([in_batches(part) for part in x.split(4)])
    found = torch.cat([alone(image) for image in x.split(1)])
    assert (found - expected).abs().max() < 1e-10
    assert alone.counts.updates == in_batches.counts.updates == len(x) // 4


def test_rotta_keeps_statistics_and_predicts_with_them():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "rotta", update_every=8)
    x = stream(torch.float32, 1)[0]
    before = adapted.teacher.norm.running_mean.clone()
    adapted(x)
    assert not torch.equal(adapted.teacher.norm.running_mean, before)
    assert not torch.equal(adapted.model.norm.running_mean, before)
    with adapted.paused():
        together, alone = adapted(x), torch.cat([adapted(image) for image in x.split(1)])
    assert torch.allclose(together, alone, atol=1e-6)


def test_robust_statistics_are_those_of_robust_batch_norm():
    model = tiny_model("batch_norm").double()
    plain = oracles.with_plain_norms(model, 0.05)
    oracles.set_mode(plain, "robust")
    for x in stream():
        with use_statistics(model, "robust", 0.05):
            found = model(x)
        expected = plain(x)
        assert (found - expected).abs().max() < 1e-12
        (found.square().sum() + expected.square().sum()).backward()
        for name, parameter in plain.named_parameters():
            own = model.get_parameter(name)
            assert (own.grad - parameter.grad).abs().max() < 1e-9
            own.grad = parameter.grad = None
    with use_statistics(model, "robust", 0.05, moves=False):
        oracles.set_mode(plain, "kept")
        assert (model(x) - plain(x)).abs().max() < 1e-12


# ROID --------------------------------------------------------------------------------------------


@each_case
@pytest.mark.parametrize("corrects", [True, False])
def test_roid(name, dtype, n, tolerance, corrects):
    model = tiny_model(name).to(dtype)
    xs = stream(dtype, n)
    changed, _ = seeded(CottaAugmentation(padding="reflect", blur=False, noise=0.0))
    expected = list(oracles.roid(model, xs, changed, is_norm, corrects))
    adapted = acclimate.adapt(model, "roid", seed=5, prior_correction=corrects)
    assert close([adapted(x) for x in xs], [logits for logits, _ in expected], tolerance)
    assert all(1 < n_selected < 8 for _, n_selected in expected)


@pytest.mark.parametrize("name", ["batch_norm", "vit"])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_roid_learns_from_samples_that_all_agree(name, size):
    adapted = acclimate.adapt(tiny_model(name), "roid")
    adapted(stream(torch.float32, 1)[0])
    logits = adapted(stream(torch.float32, 1)[0][:1].expand(size, -1, -1, -1))
    assert bool(logits.isfinite().all())
    skipped = {"single": 1} if (name, size) == ("batch_norm", 1) else {}
    assert adapted.counts.skipped == skipped


def test_roid_comes_back_to_the_source_without_its_loss():
    model = tiny_model("batch_norm").double()
    adapted = acclimate.adapt(model, "roid", lr=0.0)
    weight = model.norm.weight.detach().clone()
    with torch.no_grad():
        model.norm.weight += 1
    with warns("nothing_changed"):
        adapted(stream(n=1)[0])
    assert torch.allclose(model.norm.weight, weight + 0.99, atol=1e-12)


# MEMO --------------------------------------------------------------------------------------------


@each_case
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_memo(name, dtype, n, tolerance, optimizer):
    model = tiny_model(name).to(dtype)
    xs = stream(dtype, min(n, 2), size=4)
    changed, _ = seeded(AugMix())
    adam = optimizer == "adam"
    lr = 1e-3 if adam else 0.05

    def copies(image):
        return changed(image[None].repeat(6, 1, 1, 1))

    expected = list(oracles.memo(model, xs, copies, lr, adam))
    before = copy.deepcopy(model.state_dict())
    adapted = acclimate.adapt(model, "memo", seed=5, n_copies=6, lr=lr, optimizer=optimizer)
    found = [adapted(x) for x in xs]
    assert close(found, expected, tolerance)
    assert (found[0] - model(xs[0])).abs().max() > 100 * tolerance  # it does learn something
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    n_images = 4 * len(xs)
    assert adapted.counts.forwards == 2 * n_images
    assert adapted.counts.backwards == adapted.counts.updates == n_images


@pytest.mark.parametrize("statistics", ["mixed", "running", "robust", "source", "batch"])
def test_memo_meets_every_image_alone(statistics):
    x = stream(n=1)[0]
    options = {"statistics": statistics, "n_copies": 4, "optimizer": "adamw", "seed": 5}
    model = tiny_model("batch_norm").double()
    together = acclimate.adapt(copy.deepcopy(model), "memo", **options)(x)
    alone = acclimate.adapt(model, "memo", **options)
    found = torch.cat([alone(image) for image in x.split(1)])
    assert (found - together).abs().max() < 1e-10


@pytest.mark.parametrize("statistics", ["mixed", "running", "robust"])
def test_memo_predicts_from_the_source_s_statistics_and_the_image_s(statistics):
    """What the copies did to running statistics is gone before the image is predicted."""
    x = stream(n=1)[0]
    model = tiny_model("batch_norm").double()
    expected = []
    for image in x.split(1):
        own = copy.deepcopy(model)
        with use_statistics(own, statistics, 1 / 17), torch.no_grad():
            expected.append(own(image))
    adapted = acclimate.adapt(model, "memo", statistics=statistics, lr=0.0, n_copies=3)
    with warns("nothing_changed"):
        found = adapted(x)
    assert (found - torch.cat(expected)).abs().max() < 1e-12


def test_memo_predicts_with_the_source_where_its_step_would_overflow():
    model = tiny_model("vit")
    x = stream(torch.float32, 1)[0]
    adapted = acclimate.adapt(model, "memo", lr=1e30, n_copies=2, weight_decay=1e20)
    assert torch.allclose(adapted(x), model(x), atol=1e-6)
    assert adapted.counts.skipped == {"non_finite": 1}
    assert adapted.counts.updates == 0


def test_memo_is_not_held_up_by_the_cache_of_autocast():
    model = tiny_model("batch_norm")
    x = stream(torch.float32, 1)[0]
    with torch.autocast("cpu", torch.bfloat16):
        with warns("nothing_changed"):
            still = acclimate.adapt(copy.deepcopy(model), "memo", lr=0.0)(x)
        moved = acclimate.adapt(model, "memo", lr=0.5)(x)
    assert (moved - still).abs().max() > 0.01


def test_memo_returns_the_whole_batch_of_everything():
    info = ModelInfo(head="fine", logits_at=1)
    adapted = acclimate.adapt(tiny_model("two_heads"), "memo", info=info)
    coarse, fine = adapted(stream(torch.float32, 1)[0])
    assert coarse.shape == (8, 2)
    assert fine.shape == (8, 4)
