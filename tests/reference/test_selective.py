"""ETA, EATA, RDumb and RPL against plain versions, and what all selective methods hold."""

from __future__ import annotations

import math

import pytest
import torch

import acclimate
from acclimate.functional.entropy import entropy
from acclimate.methods.deyo import DeyoConfig
from acclimate.methods.eata import EataConfig
from acclimate.methods.eta import EtaConfig
from acclimate.methods.rdumb import RdumbConfig
from acclimate.methods.rpl import RplConfig
from acclimate.methods.sar import SarConfig
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises
from tests.reference import oracles_selective as oracles
from tests.reference.selective_models import (
    EXACT,
    MODELS,
    close,
    is_norm,
    prepared,
    run,
    same,
    sharp_model,
    state,
    stream,
    weights,
)

# ETA, EATA, RDumb --------------------------------------------------------------------------------


@pytest.mark.parametrize("sgd", [False, True])
@pytest.mark.parametrize(("dtype", "n", "tolerance"), EXACT)
@pytest.mark.parametrize("name", MODELS)
def test_eta(name, dtype, n, tolerance, sgd):
    model, xs, log = sharp_model(name, dtype), stream(dtype, n), []
    options = {"max_entropy": 0.5, "max_similarity": 0.8, "lr": 1e-2}
    expected = list(oracles.eata(model, xs, is_norm, **options, sgd=sgd, log=log))
    optimizer = "sgd" if sgd else "adam"
    adapted = acclimate.adapt(model, "eta", **options, optimizer=optimizer)
    assert close(run(adapted, xs), expected, tolerance)
    chosen, unsure, alike, _ = (sum(column) for column in zip(*log, strict=True))
    assert chosen
    assert unsure
    assert alike or n == 1


@pytest.mark.parametrize(("dtype", "n", "tolerance"), EXACT)
@pytest.mark.parametrize("name", MODELS)
def test_eata(name, dtype, n, tolerance):
    model, xs, log = sharp_model(name, dtype), stream(dtype, n), []
    artifact = prepared(model)
    options = {"max_entropy": 0.5, "max_similarity": 0.8, "lr": 1e-2, "fisher_weight": 50.0}
    expected = list(
        oracles.eata(model, xs, is_norm, **options, fisher=artifact.part("fisher"), log=log)
    )
    found = run(acclimate.adapt(model, "eata", artifact, **options), xs)
    assert close(found, expected, tolerance)
    if n > 1:
        free = oracles.eata(model, xs, is_norm, **{**options, "fisher_weight": 0.0})
        assert not close(list(free), expected, 1e-6)
        assert all(sum(column) for column in list(zip(*log, strict=True))[:3])


def test_eata_without_its_penalty_is_eta():
    options = {"max_entropy": 0.5, "max_similarity": 0.8}
    model = sharp_model("batch_norm")
    left = acclimate.adapt(model, "eata", prepared(model), fisher_weight=0.0, **options)
    right = acclimate.adapt(sharp_model("batch_norm"), "eta", **options)
    assert all(map(torch.equal, run(left, stream()), run(right, stream())))


def test_a_strong_penalty_holds_the_weights():
    distances = []
    for fisher_weight in (0.0, 1.0, 1e6):
        model = sharp_model("batch_norm")
        before = weights(model)
        options = {"optimizer": "sgd", "lr": 1e-6, "sgd_momentum": 0.0, "max_similarity": 2.0}
        adapted = acclimate.adapt(
            model, "eata", prepared(model), fisher_weight=fisher_weight, **options
        )
        run(adapted, stream(n=20))
        moved = weights(adapted.model)
        distances.append(sum(float((moved[k] - before[k]).abs().sum()) for k in before))
    assert distances[0] >= distances[1] > distances[2] > 0


def test_eata_needs_its_part_of_the_artifact():
    model = sharp_model("batch_norm")
    with raises("artifact_needed", methods=("eata",)):
        acclimate.adapt(model, "eata")
    other = acclimate.prepare(model, tiny_batches(2, dtype=torch.float64), parts=["features"])
    with raises("missing_parts", parts=("fisher",)):
        acclimate.adapt(model, "eata", other)


def test_the_mean_prediction_is_of_chosen_samples_and_is_forgotten():
    model, xs = sharp_model("batch_norm"), stream()
    adapted = acclimate.adapt(model, "eta", max_entropy=0.5, max_similarity=0.8)
    assert adapted.mean_prediction is None
    first = run(adapted, xs[:1])[0]
    sure = entropy(first) < 0.5 * math.log(4)
    assert 0 < int(sure.sum()) < len(first)
    expected = first.softmax(dim=1)[sure].mean(dim=0)
    assert torch.allclose(adapted.mean_prediction, expected, atol=1e-12)
    adapted.reset()
    assert adapted.mean_prediction is None


@pytest.mark.parametrize("reset_every", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_rdumb(name, reset_every):
    model, xs, log = sharp_model(name), stream(n=8), []
    options = {"max_entropy": 0.5, "max_similarity": 0.8, "lr": 1e-2, "reset_every": reset_every}
    expected = list(oracles.eata(model, xs, is_norm, **options, log=log))
    adapted = acclimate.adapt(model, "rdumb", **options)
    assert close(run(adapted, xs), expected, 1e-8)
    n_updates = sum(chosen > 0 for chosen, *_ in log)
    assert adapted.counts.batches == 8
    assert adapted.counts.updates == n_updates
    assert adapted.counts.restored == sum(reset for *_, reset in log) == n_updates // reset_every


def test_rdumb_begins_anew_and_counts_on(tmp_path):
    model, xs = sharp_model("batch_norm"), stream(n=7)
    options = {"max_entropy": 1.5, "max_similarity": 2.0, "lr": 1e-2, "reset_every": 3}
    adapted = acclimate.adapt(model, "rdumb", **options)
    before = weights(model)
    run(adapted, xs[:2])
    assert not same(before, weights(model))
    run(adapted, xs[2:3])
    assert same(before, weights(model))
    assert adapted.mean_prediction is None
    assert not adapted.optimizer.state
    assert (adapted.counts.updates, adapted.counts.batches) == (3, 3)
    expected = run(adapted.reset(), xs)
    for cut in range(len(xs)):  # the phase of the resets is saved too
        run(adapted.reset(), xs[:cut])
        adapted.save(tmp_path / "state.safetensors")
        fresh = acclimate.adapt(sharp_model("batch_norm"), "rdumb", **options)
        found = run(fresh.load(tmp_path / "state.safetensors"), xs[cut:])
        assert all(map(torch.equal, found, expected[cut:]))


def test_rdumb_that_never_resets_is_eta():
    options = {"max_entropy": 0.5, "max_similarity": 0.8}
    left = acclimate.adapt(sharp_model("vit"), "rdumb", **options)
    right = acclimate.adapt(sharp_model("vit"), "eta", **options)
    assert all(map(torch.equal, run(left, stream()), run(right, stream())))


# RPL ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.8, 0.1, 1.0])
@pytest.mark.parametrize(("dtype", "n", "tolerance"), EXACT)
@pytest.mark.parametrize("name", MODELS)
def test_rpl(name, dtype, n, tolerance, exponent):
    model, xs = sharp_model(name, dtype), stream(dtype, n)
    expected = list(oracles.rpl(model, xs, is_norm, exponent, lr=1e-2))
    found = run(acclimate.adapt(model, "rpl", exponent=exponent, lr=1e-2), xs)
    assert close(found, expected, tolerance)


# All ---------------------------------------------------------------------------------------------

#: Where all predictions are certain, or even, updates may change nothing.
WHERE_GRADIENTS_VANISH = "ignore:An update of:acclimate.errors.AcclimateWarning"
CHOOSY = ["eta", "eata", "rdumb", "sar", "deyo"]


def adapt(model, method, **options):
    artifact = prepared(model) if method == "eata" else None
    return acclimate.adapt(model, method, artifact, **options)


@pytest.mark.parametrize("name", ["batch_norm", "vit"])
@pytest.mark.parametrize("method", CHOOSY)
def test_nothing_chosen_nothing_changed(method, name):
    model = sharp_model(name)
    adapted = adapt(model, method, max_entropy=0.0)
    before, xs = weights(model), stream()
    expected = [oracles.batch_mode(model)(x).detach() for x in xs]
    assert close(run(adapted, xs), expected, 1e-12)
    assert same(before, weights(model))
    assert adapted.counts.updates == adapted.counts.backwards == 0
    assert adapted.counts.skipped == {"nothing_selected": len(xs)}
    assert not adapted.optimizer.state


@pytest.mark.filterwarnings(WHERE_GRADIENTS_VANISH)
@pytest.mark.parametrize("kind", ["equal", "certain", "even"])
@pytest.mark.parametrize("method", [*CHOOSY, "rpl"])
def test_degenerate_predictions_stay_finite(method, kind):
    model = sharp_model("group_norm", "float32", {"certain": 1e4, "even": 0.0}.get(kind))
    adapted = adapt(model, method)
    xs = stream("float32")
    if kind == "equal":
        xs = [x[:1].expand(8, -1, -1, -1) for x in xs]
    assert all(bool(logits.isfinite().all()) for logits in run(adapted, xs))
    assert all(bool(t.isfinite().all()) for t in state(adapted).values() if t.is_floating_point())


@pytest.mark.parametrize("method", [*CHOOSY, "rpl"])
def test_half_precision_and_autocast_run(method):
    options = {} if method == "rpl" else {"max_entropy": 1.5}
    model = sharp_model("batch_norm", "bfloat16")
    adapted = adapt(model, method, **options)
    assert all(bool(logits.isfinite().all()) for logits in run(adapted, stream("bfloat16")))
    assert adapted.counts.updates or method == "deyo"
    adapted = adapt(sharp_model("vit", "float32"), method, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run(adapted, stream("float32"))
    assert all(bool(logits.isfinite().all()) for logits in found)


@pytest.mark.parametrize("method", [*CHOOSY, "rpl"])
def test_a_model_without_normalisation_is_refused(method):
    model = tiny_model("mlp")
    with raises(
        "method_refused",
        methods=(method,),
        reasons=lambda reasons: (
            [reason.partition(":")[0] for reason in reasons[method]] == ["normalisation"]
        ),
    ):
        acclimate.adapt(model, method)


def test_published_values():
    """METHODS: E0 0.4 log K, ε 0.4 / 0.1 / 0.05, λ 1 / 2000, ρ 0.05, recovery 0.2, τ 0.2 / 0.3."""
    adam, sgd = ("adam", 1e-3), ("sgd", 2.5e-4)
    for config in (EtaConfig, EataConfig, RdumbConfig, DeyoConfig, RplConfig):
        assert (config().optimizer, config().lr) == adam
    for config in (EtaConfig, EataConfig, RdumbConfig, SarConfig, DeyoConfig):
        found = config.from_preset("imagenet")
        assert (found.optimizer, found.lr) == sgd
    assert (SarConfig().optimizer, SarConfig().lr) == ("sgd", 1e-3)
    for config in (EtaConfig, EataConfig):
        found = [config.from_preset(name) for name in ("cifar10", "cifar100", "imagenet")]
        assert [f.max_similarity for f in found] == [0.4, 0.1, 0.05]
        assert {f.max_entropy for f in found} == {0.4}
    assert EataConfig().fisher_weight == EataConfig.from_preset("cifar100").fisher_weight == 1.0
    assert EataConfig.from_preset("imagenet").fisher_weight == 2000.0
    assert RdumbConfig().reset_every == 1000
    assert (SarConfig().max_entropy, SarConfig().radius, SarConfig().recover_below) == (
        0.4,
        0.05,
        0.2,
    )
    assert (DeyoConfig().max_entropy, DeyoConfig().weight_entropy) == (0.5, 0.4)
    assert (DeyoConfig().min_drop, DeyoConfig.from_preset("imagenet").min_drop) == (0.2, 0.3)
    assert RplConfig().exponent == 0.8
