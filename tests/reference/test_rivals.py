"""COME, CMF, PeTTA and TRIBE against the plain versions of `oracles_rivals.py`."""

from __future__ import annotations

import math

import pytest
import torch

import acclimate
from acclimate.functional.augmentations import CottaAugmentation, augment
from acclimate.functional.entropy import conservative_entropy
from acclimate.methods import METHODS
from acclimate.methods.config import EntropyConfig
from tests.codes import raises
from tests.reference import oracles_rivals as oracles
from tests.reference import oracles_selective
from tests.reference.selective_models import (
    EXACT,
    MODELS,
    close,
    is_norm,
    prepared,
    run,
    sharp_model,
    stream,
)

each_case = pytest.mark.parametrize(("dtype", "n", "tolerance"), EXACT)
each_model = pytest.mark.parametrize("name", MODELS)

# COME --------------------------------------------------------------------------------------------


@each_case
@each_model
@pytest.mark.parametrize("method", ["tent", "entropy"])
def test_come(method, name, dtype, n, tolerance):
    model, xs = sharp_model(name, dtype), stream(dtype, n)
    trained = is_norm if method == "tent" else bool
    expected = list(oracles.come(model, xs, trained))
    found = run(acclimate.adapt(model, method, entropy="come"), xs)
    assert close(found, expected, tolerance)
    if n > 1:
        usual = run(acclimate.adapt(sharp_model(name, dtype), method), xs)
        assert not close(usual, expected, 1e-4)


SURE = {"max_entropy": 0.7, "lr": 1e-2}
#: Options, and those of the oracle that are called otherwise.
SELECTIVE = {
    "eta": {**SURE, "max_similarity": 0.8},
    "eata": {**SURE, "max_similarity": 0.8, "fisher_weight": 50.0},
    "rdumb": {**SURE, "max_similarity": 0.8, "reset_every": 2},
    "sar": {**SURE, "recover_below": 0.0},
    "deyo": {**SURE, "max_entropy": 0.8, "min_drop": 0.02},
}


@each_model
@pytest.mark.parametrize("method", SELECTIVE)
def test_come_in_methods_that_select(method, name):
    """Thresholds and weights take the same entropy, as shares of log K."""
    model, xs, log, options = sharp_model(name), stream(), [], SELECTIVE[method]
    artifact = prepared(model) if method == "eata" else None
    extra = {"log": log, "measure": oracles.opinion_entropy}
    if method in ("sar", "deyo"):
        oracle = getattr(oracles_selective, method)
    else:
        oracle = oracles_selective.eata
    if method == "eata":
        extra["fisher"] = artifact.part("fisher")
    draws = torch.Generator().manual_seed(5)
    orders = [lambda n: torch.rand(n, 16, generator=draws).argsort(dim=1)] * (method == "deyo")
    expected = list(oracle(model, xs, is_norm, *orders, **options, **extra))
    adapted = acclimate.adapt(model, method, artifact, entropy="come", seed=5, **options)
    assert close(run(adapted, xs), expected, 1e-8)
    assert 0 < sum(row[0] for row in log) < 16 * len(xs)
    assert adapted.counts.updates > 0


def random_logits(scale=3.0, dtype=torch.float64):
    return scale * torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).to(dtype)


def test_conservative_entropy_is_that_of_the_opinion():
    logits = random_logits()
    expected = torch.stack([oracles.opinion_entropy(z) for z in logits])
    assert (conservative_entropy(logits) - expected).abs().max() < 1e-12
    most = conservative_entropy(torch.full((1, 7), 0.0, dtype=torch.float64))
    assert float(most) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(14))


def test_conservative_entropy_has_no_gradient_along_the_logits():
    logits = random_logits().requires_grad_()
    (found,) = torch.autograd.grad(conservative_entropy(logits).sum(), logits)
    (expected,) = torch.autograd.grad(sum(map(oracles.opinion_entropy, logits)), logits)
    assert (found - expected).abs().max() < 1e-12
    assert (found * logits).sum(dim=1).abs().max() < 1e-12
    assert found.abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 20.0, 6e4, 3e38])
def test_conservative_entropy_is_finite_at_the_limits(dtype, size):
    logits = torch.full((4, 5), -size).clamp_min(torch.finfo(dtype).min).to(dtype)
    logits[range(4), [0, 1, 2, 2]] = min(size, torch.finfo(dtype).max)
    logits.requires_grad_()
    each = conservative_entropy(logits)
    (gradient,) = torch.autograd.grad(each.sum(), logits)
    assert each.dtype == torch.float32
    assert each.isfinite().all()
    assert (each >= 0).all()
    assert gradient.isfinite().all()


def test_the_entropy_is_an_option_of_entropy_methods_only():
    able = {name for name, kind in METHODS.items() if issubclass(kind.config_class, EntropyConfig)}
    assert able == {"tent", "entropy", "eta", "eata", "sar", "deyo", "rdumb", "note"}
    with raises("unknown_option", option="entropy"):
        acclimate.adapt(sharp_model("vit"), "roid", entropy="come")
    with raises("invalid_options", problems=lambda found: set(found) == {"entropy"}):
        acclimate.adapt(sharp_model("vit"), "tent", entropy="opinion")


# CMF ---------------------------------------------------------------------------------------------


def drawing(how, seed=5):
    """Return an augmentation with the package's own draws."""
    draws = torch.Generator().manual_seed(seed)
    return lambda x: augment(how, x, None, draws)


ROID_VIEW = CottaAugmentation(padding="reflect", blur=False, noise=0.0)


@each_case
@each_model
@pytest.mark.parametrize("drift", [0.005, 10.0, 300.0])
def test_cmf(name, dtype, n, tolerance, drift):
    model, xs, log = sharp_model(name, dtype), stream(dtype, 2 * n if n > 1 else 1), []
    shares = {"alpha": 0.9, "gamma": 0.8}  # far from 1, so that they matter
    expected = list(
        oracles.cmf(model, xs, drawing(ROID_VIEW), is_norm, drift=drift, **shares, log=log)
    )
    options = {"drift": drift, "source_share": 0.1, "hidden_share": 0.2, "seed": 5}
    adapted = acclimate.adapt(model, "cmf", **options)
    assert close(run(adapted, xs), expected, tolerance)
    variance, kept = log[-1]
    assert adapted.variance == pytest.approx(variance, rel=1e-9)
    if n > 1:  # every branch is taken: all is kept, some is, and as little as is allowed
        assert {0.005: kept == 1, 10.0: 0.89 < kept < 1, 300.0: kept == 0.89}[drift]


def test_cmf_reset_forgets_variance_and_hidden_weights():
    xs = stream()
    adapted = acclimate.adapt(sharp_model("batch_norm"), "cmf", drift=40.0)
    first = {name: values.clone() for name, values in adapted.hidden.items()}
    run(adapted, xs)
    assert adapted.variance > 0
    assert any(not torch.equal(adapted.hidden[name], values) for name, values in first.items())
    adapted.reset()
    assert adapted.variance == 0
    assert all(torch.equal(adapted.hidden[name], values) for name, values in first.items())


def test_cmf_without_drift_and_with_the_source_only_is_roid():
    xs = stream()
    left = acclimate.adapt(sharp_model("vit"), "cmf", drift=0.0, seed=5)
    right = acclimate.adapt(sharp_model("vit"), "roid", seed=5)
    assert close(run(left, xs), run(right, xs), 1e-12)
