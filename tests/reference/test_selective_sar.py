"""SAR against a plain version: climb, return, recovery, and which layers move."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import acclimate
from acclimate import Nsp
from acclimate.functional.entropy import entropy
from acclimate.methods.deyo import DeyoConfig
from acclimate.methods.sar import SarConfig
from acclimate.testing.models import tiny_batches
from tests.codes import warns
from tests.reference import oracles_selective as oracles
from tests.reference.selective_models import (
    EXACT,
    MODELS,
    close,
    is_norm,
    run,
    same,
    sharp_model,
    state,
    stream,
    weights,
)


@pytest.mark.parametrize(("dtype", "n", "tolerance"), EXACT)
@pytest.mark.parametrize("name", MODELS)
def test_sar(name, dtype, n, tolerance):
    model, xs, log = sharp_model(name, dtype), stream(dtype, n), []
    options = {"max_entropy": 0.5, "radius": 0.1, "lr": 1e-2, "recover_below": 0.0}
    expected = list(oracles.sar(model, xs, is_norm, **options, log=log))
    adapted = acclimate.adapt(model, "sar", **options)
    assert close(run(adapted, xs), expected, tolerance)
    first, second, _ = (sum(column) for column in zip(*log, strict=True))
    assert 0 < first < n * 16
    assert 0 < second < first or n == 1  # some are lost on the climb
    n_climbs, n_updates = (sum(row[k] > 0 for row in log) for k in (0, 1))
    assert adapted.counts.forwards == n + n_climbs
    assert adapted.counts.backwards == n_climbs + n_updates
    assert adapted.counts.updates == n_updates


@pytest.mark.parametrize("name", MODELS)
def test_sar_recovers_once_and_forgets(name):
    model, xs, log = sharp_model(name), stream(n=8), []
    options = {"max_entropy": 0.5, "lr": 0.1}
    averages = sorted(filter(None, track_averages(name, options, xs)))
    # Between two averages, so that rounding decides nothing, and passed in the midst of the stream.
    low = sum(averages[len(averages) // 2 - 1 :][:2]) / 2
    expected = list(oracles.sar(model, xs, is_norm, **options, recover_below=low, log=log))
    n_recovered = sum(recovered for *_, recovered in log)
    assert 0 < n_recovered < len(xs)
    adapted = acclimate.adapt(model, "sar", **options, recover_below=low)
    before = weights(model)
    for x, logits, (*_, recovered) in zip(xs, expected, log, strict=True):
        assert close([adapted(x)], [logits], 1e-8)
        assert same(before, weights(model)) == recovered
        assert (adapted.mean_loss is None) == recovered
        assert bool(adapted.optimizer.state) != recovered
    assert adapted.counts.restored == n_recovered
    assert adapted.counts.updates == len(xs)


def track_averages(name, options, xs):
    adapted = acclimate.adapt(sharp_model(name), "sar", **options, recover_below=0.0)
    for x in xs:
        adapted(x)
        yield None if adapted.mean_loss is None else float(adapted.mean_loss)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_sar_comes_back_from_its_climb_bit_for_bit(dtype):
    model = sharp_model("batch_norm", dtype)
    adapted = acclimate.adapt(model, "sar", lr=0.0, radius=1.0, max_entropy=1.5)
    before = weights(model)
    with warns("nothing_changed"):
        run(adapted, stream(dtype))
    assert adapted.counts.skipped == {"unchanged": 5}
    assert same(before, weights(model))


@pytest.mark.parametrize("passes", [1, 2])
def test_sar_leaves_no_trace_of_a_pass_that_fails(passes):
    model, xs = sharp_model("batch_norm"), stream()
    adapted = acclimate.adapt(model, "sar", max_entropy=1.5, radius=1.0)
    adapted(xs[0])
    before, counts = state(adapted), copy.deepcopy(adapted.counts)
    honest, calls = adapted.loss, []

    def failing(x):
        calls.append(x)
        if len(calls) == passes:
            raise KeyboardInterrupt
        return honest(x)

    adapted.loss = failing
    with pytest.raises(KeyboardInterrupt):
        adapted(xs[1])
    adapted.loss = honest
    assert len(calls) == passes
    assert same(before, state(adapted))
    assert adapted.counts == counts
    twin = acclimate.adapt(sharp_model("batch_norm"), "sar", max_entropy=1.5, radius=1.0)
    assert torch.equal(run(twin, xs[:2])[1], adapted(xs[1]))


def test_sar_without_a_climb_is_plain_descent_on_reliable_entropy():
    options = {"max_entropy": 1.5, "radius": 0.0, "recover_below": 0.0, "lr": 1e-2}
    left = acclimate.adapt(sharp_model("batch_norm"), "sar", **options)
    right = acclimate.adapt(sharp_model("batch_norm"), "tent", optimizer="sgd", lr=1e-2)
    assert close(run(left, stream()), run(right, stream()), 1e-12)


def test_sar_adds_nearest_prototypes_up_there():
    """The gradient with NSP is the sum of SAR's and of NSP's at the climbed weights."""
    model, xs = sharp_model("batch_norm"), stream(n=1)
    options = {"max_entropy": 1.5, "radius": 0.5, "sgd_momentum": 0.0, "lr": 0.1}
    artifact = acclimate.prepare(model, tiny_batches(6, dtype=torch.float64), parts=["prototypes"])
    moves = {}
    for name, terms in (("alone", []), ("both", [Nsp(consistency=0.0)])):
        twin = copy.deepcopy(model)
        run(acclimate.adapt(twin, "sar", artifact, terms=terms, **options), xs)
        moves[name] = {k: weights(twin)[k] - v for k, v in weights(model).items()}
    plain = oracles.batch_mode(model)
    named = {k: p for k, p in plain.named_parameters() if is_norm(k)}
    loss = sum(oracles.plain_entropy(oracles.probabilities(z)) for z in plain(xs[0])) / 16
    gradients = torch.autograd.grad(loss, list(named.values()))
    length = math.sqrt(sum(float((g * g).sum()) for g in gradients))
    for parameter, gradient in zip(named.values(), gradients, strict=True):
        parameter.data = parameter.data + 0.5 * gradient / length
    taken = []
    plain.head.register_forward_hook(lambda _, inputs, __: taken.append(inputs[0]))
    plain(xs[0])
    prototypes = artifact.part("prototypes")["embedding"]
    rows = [
        oracles.probabilities(torch.stack([oracles.cosine(f, q) for q in prototypes]) / 0.1)
        for f in taken[0]
    ]
    added = 0.8 * sum(map(oracles.plain_entropy, rows)) / len(rows)
    added = added - 0.25 * oracles.plain_entropy(sum(rows) / len(rows))
    expected = torch.autograd.grad(added, list(named.values()))
    for name, gradient in zip(named, expected, strict=True):
        found = (moves["both"][name] - moves["alone"][name]) / -0.1
        assert torch.allclose(found, gradient, atol=1e-9)


def test_the_presets_leave_out_the_top_of_a_resnet_50_and_nothing_by_default():
    for config in (SarConfig, DeyoConfig):
        assert config().skip_top == 0.0
        assert config.from_preset("cifar100").skip_top == 0.0
        assert config.from_preset("imagenet").skip_top == 0.19


@pytest.mark.parametrize("method", ["sar", "deyo"])
def test_the_top_does_not_move(method):
    model = sharp_model("batch_norm")
    options = {"min_drop": -1.0} if method == "deyo" else {}
    adapted = acclimate.adapt(model, method, skip_top=0.4, max_entropy=1.5, **options)
    before = weights(model)
    run(adapted, stream(n=2))
    moved = {k for k, v in weights(model).items() if not torch.equal(v, before[k])}
    assert moved == {f"{k}.{end}" for k in ("norm", "block.norm1") for end in ("weight", "bias")}


def test_sar_skips_what_is_lost_on_the_climb():
    model, x = sharp_model("batch_norm"), stream(n=1)[0]
    low = float(entropy(oracles.batch_mode(model)(x).detach()).min()) / math.log(4)
    adapted = acclimate.adapt(model, "sar", max_entropy=low * 1.000001, radius=0.5)
    before = weights(model)
    adapted(x)
    assert adapted.counts.skipped == {"nothing_selected": 1}
    assert adapted.counts.backwards == 1
    assert adapted.mean_loss is None
    assert same(before, weights(model))
