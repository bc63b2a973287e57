"""COME, CMF, PeTTA and TRIBE against the plain versions of `oracles_rivals.py`."""

from __future__ import annotations

import math

import pytest
import torch

import acclimate
from acclimate.functional.augmentations import CottaAugmentation, augment
from acclimate.functional.balanced_norm import (
    mix_classes,
    move_moments,
    start_moments,
    use_balanced,
)
from acclimate.functional.entropy import conservative_entropy
from acclimate.methods import METHODS
from acclimate.methods.config import EntropyConfig
from acclimate.testing.models import tiny_batches, tiny_model
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
    same,
    sharp_model,
    stream,
    weights,
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


@pytest.mark.parametrize(("n_scalars", "kept"), [(38400, 0.940), (53120, 0.928), (17952, 0.961)])
def test_cmf_keeps_what_the_authors_settings_keep(n_scalars, kept):
    """ViT-B, ResNet-50 and WRN-28-10, after many updates."""
    adapted = acclimate.adapt(tiny_model("batch_norm"), "cmf")
    adapted.hidden = {"all": torch.zeros(n_scalars)}
    shares = [adapted._filter_variance() for _ in range(1000)]
    assert shares[0] == pytest.approx(1 - 0.005 * n_scalars / 38400)
    assert shares[-1] == pytest.approx(kept, abs=1e-3)


# TRIBE -------------------------------------------------------------------------------------------


def kept_model(dtype="float64", name="batch_norm"):
    """Return a model that predicts all classes with the statistics it has, some of them surely."""
    model = tiny_model(name).to(getattr(torch, dtype)).eval()
    with torch.no_grad():
        model.head.weight.mul_(40)
        model.head.bias.sub_(model(torch.cat(stream(dtype))).mean(dim=0))
    return model


@pytest.mark.parametrize(
    ("rate", "sharing", "max_entropy"), [(0.01, 0.0, 0.5), (0.2, 0.4, 0.6), (0.5, 1.0, 0.3)]
)
@each_case
def test_tribe(dtype, n, tolerance, rate, sharing, max_entropy):
    model, xs, log = kept_model(dtype), stream(dtype, n), []
    view = drawing(CottaAugmentation())
    found = oracles.tribe(model, xs, view, is_norm, rate, sharing, max_entropy, log=log)
    expected = list(found)
    options = {"class_rate": rate, "class_sharing": sharing, "max_entropy": max_entropy}
    adapted = acclimate.adapt(model, "tribe", **options, seed=5)
    assert close(run(adapted, xs), expected, tolerance)
    assert 0 < sum(log) < 16 * len(xs)
    assert len(set(expected[0].argmax(dim=1).tolist())) > 2
    assert adapted.counts.forwards == 4 * len(xs)
    assert adapted.counts.updates == sum(number > 0 for number in log)


def test_tribe_without_a_sure_prediction_moves_statistics_only():
    model, xs, log = kept_model(), stream(), []
    before = weights(model)
    view = drawing(CottaAugmentation())
    expected = list(oracles.tribe(model, xs, view, is_norm, 0.2, 0.1, 0.0, log=log))
    options = {"class_rate": 0.2, "class_sharing": 0.1, "max_entropy": 0.0}
    adapted = acclimate.adapt(model, "tribe", **options, seed=5)
    assert close(run(adapted, xs), expected, 1e-9)
    assert not close(expected, run(acclimate.adapt(kept_model(), "source"), xs), 1e-3)
    assert adapted.counts.skipped == {"nothing_selected": len(xs)}
    assert same(before, weights(adapted.model))


def test_tribe_s_statistics_are_reset_and_belong_to_three_networks():
    xs = stream()
    adapted = acclimate.adapt(kept_model(), "tribe", class_rate=0.2, max_entropy=0.5)
    run(adapted, xs)
    teacher, student, anchor = (adapted.moments[k] for k in ("teacher", "student", "anchor"))
    assert (
        teacher.keys() == student.keys() == anchor.keys() == {"norm", "block.norm1", "block.norm2"}
    )
    assert all(moments.shape == (2, 4, 8) for moments in teacher.values())
    assert all(not torch.equal(teacher[k], student[k]) for k in teacher)
    # The scale of the first layer does not change its own input, but that of the others.
    assert torch.equal(teacher["norm"], anchor["norm"])
    assert not torch.equal(teacher["block.norm2"], anchor["block.norm2"])
    adapted.reset()
    assert adapted.moments == {"teacher": {}, "student": {}, "anchor": {}}


@pytest.mark.parametrize("name", ["group_norm", "vit", "mlp"])
def test_tribe_refuses_models_without_batch_norm(name):
    with raises("method_refused", methods=("tribe",)):
        acclimate.adapt(tiny_model(name), "tribe")


@pytest.mark.parametrize("option", [{"micro_batch": 4}, {"checkpoint": True}])
def test_tribe_refuses_passes_in_parts(option):
    with raises("conflicting_options", options=(*option, "statistics")):
        acclimate.adapt(kept_model(), "tribe", speed=acclimate.Speed(**option))
    acclimate.adapt(kept_model(), "tribe", statistics="batch", speed=acclimate.Speed(**option))


def test_balanced_moments_of_full_steps_are_those_of_the_batch():
    """At a high rate a class takes on the moments of its samples; others stay."""
    x = torch.randn(12, 3, 5, 4, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.tensor([0] * 5 + [2] * 7)
    start = start_moments(torch.zeros(3).double(), torch.ones(3).double(), 3)
    means, variances = move_moments(start, x, labels, rate=1.0, sharing=0.0)
    for k, members in ((0, x[:5]), (2, x[5:])):
        assert (means[k] - members.mean(dim=(0, 2, 3))).abs().max() < 1e-12
        expected = members.var(dim=(0, 2, 3), correction=0)
        assert (variances[k] - expected).abs().max() < 1e-12
    assert torch.equal(torch.stack([means[1], variances[1]]), start[:, 1])


def test_balanced_moments_share_steps_with_absent_classes():
    x = 3 + torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(0)).double()
    start = start_moments(torch.zeros(2).double(), torch.ones(2).double(), 5)
    means, variances = move_moments(start, x, torch.full((6,), 3), rate=0.01, sharing=0.5)
    assert (means > 0).all()
    assert (means[3] > means[0]).all()
    assert (variances > 0).all()
    mean, variance = mix_classes(torch.stack([means, variances]))
    assert (mean - means.mean(dim=0)).abs().max() < 1e-12
    assert (variance > variances.mean(dim=0)).all()


def test_balanced_statistics_leave_the_layers_as_they_were():
    model = kept_model()
    before, x = weights(model), stream(n=1)[0]
    with use_balanced(model.eval(), {}, torch.zeros(16, dtype=torch.long), 4, 0.1) as moved:
        model(x)
    assert set(moved) == {"norm", "block.norm1", "block.norm2"}
    assert same(before, weights(model))
    assert not any(module._forward_pre_hooks for module in model.modules())
    with use_balanced(model, {}):  # no labels and no moments: the source's
        assert torch.equal(model(x), acclimate.adapt(model, "source")(x))


# PeTTA -------------------------------------------------------------------------------------------


def encode(model, x):
    """Return the inputs of the head."""
    taken = []
    hook = model.head.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
    model(x)
    hook.remove()
    return taken[0].detach()


def petta_source(dtype):
    return tiny_batches(6, 16, seed=1, dtype=getattr(torch, dtype))


def drifting_model(name, dtype="float64"):
    """Return a model whose scales and shifts have a direction to leave."""
    model, draws = kept_model(dtype, name), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if is_norm(key):
                noise = torch.randn(parameter.shape, generator=draws)
                parameter.add_(0.2 * noise.to(parameter))
    return model


QUICK = {"lr": 1e-2, "teacher_decay": 0.5}


@pytest.mark.parametrize("self_training", ["symmetric", "teacher"])
@each_case
@pytest.mark.parametrize("name", ["batch_norm", "vit"])
def test_petta(name, dtype, n, tolerance, self_training):
    model, log = drifting_model(name, dtype), []
    # In single precision two batches: the first has no drift yet.
    xs = stream(dtype, n if n > 1 else 2)
    source = petta_source(dtype)
    artifact = acclimate.prepare(model, source, parts=["features"])
    x, y = (torch.cat(column) for column in zip(*source, strict=True))
    moments = oracles.class_moments(encode(model, x), y, 4)
    symmetric, view = self_training == "symmetric", drawing(CottaAugmentation())
    given = (model, xs, view, is_norm, moments, encode)
    quick = {"lr": 1e-2, "rate": 0.5}  # a slow teacher would hide most of what the student learns
    expected = list(oracles.petta(*given, **quick, capacity=12, symmetric=symmetric, log=log))
    options = {"memory_size": 12, "self_training": self_training, "seed": 5, **QUICK}
    adapted = acclimate.adapt(model, "petta", artifact, **options)
    # The artifact holds the moments in single precision.
    tolerance = max(tolerance, 1e-5)
    assert close(run(adapted, xs), expected, tolerance)
    assert log[0] == 0
    assert 0.001 < log[-1] < 0.999
    assert adapted._drift == pytest.approx(log[-1], rel=1e-4)
    assert adapted.counts.forwards == 5 * len(xs)
    assert adapted.counts.updates == len(xs)


def petta_with(**options):
    model = drifting_model("batch_norm")
    artifact = acclimate.prepare(model, petta_source("float64"), parts=["features"])
    return acclimate.adapt(
        model, "petta", artifact, **{"seed": 5, "memory_size": 12, **QUICK, **options}
    )


def test_petta_s_drift_weight_and_source_weight_matter():
    usual = run(petta_with(), stream())
    for option in ({"drift_weight": 0.0}, {"source_weight": 0.0}, {"means_rate": 1.0}):
        assert not close(run(petta_with(**option), stream()), usual, 1e-3)


def test_petta_resets_its_class_means():
    adapted = petta_with()
    first = adapted.class_means.clone()
    run(adapted, stream())
    assert not torch.equal(adapted.class_means, first)
    assert torch.equal(adapted.reset().class_means, first)


def test_petta_ignores_classes_that_the_source_does_not_have():
    """Their variance is zero, and any feature would be a drift of 1."""
    model = drifting_model("batch_norm")
    source = [(x, y.clamp_max(2)) for x, y in petta_source("float64")]
    artifact = acclimate.prepare(model, source, parts=["features"])
    adapted = acclimate.adapt(model, "petta", artifact, means_rate=1.0, memory_size=12)
    run(adapted, stream())
    assert adapted._measure_drift(torch.tensor([3])) == 0
    assert adapted._measure_drift(torch.tensor([0, 1, 2])) > 0


def test_petta_needs_moments_of_the_source():
    with raises("artifact_needed", methods=("petta",)):
        acclimate.adapt(tiny_model("batch_norm"), "petta")


def test_petta_learns_from_single_images():
    adapted = petta_with()
    for image in torch.cat(stream(n=1)).split(1):
        assert adapted(image).isfinite().all()
    assert adapted.counts.updates == 16
