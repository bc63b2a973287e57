"""DeYO against a plain version."""

from __future__ import annotations

import math

import pytest
import torch

import acclimate
from acclimate.functional.entropy import entropy
from tests.reference import oracles_selective as oracles
from tests.reference.selective_models import EXACT, MODELS, close, is_norm, run, sharp_model, stream


def orders_from(seed):
    generator = torch.Generator().manual_seed(seed)
    return lambda n: torch.rand(n, 16, generator=generator).argsort(dim=1)


@pytest.mark.parametrize("sgd", [False, True])
@pytest.mark.parametrize(("dtype", "n", "tolerance"), EXACT)
@pytest.mark.parametrize("name", MODELS)
def test_deyo(name, dtype, n, tolerance, sgd):
    model, xs, log = sharp_model(name, dtype), stream(dtype, n), []
    options = {"max_entropy": 0.8, "min_drop": 0.02, "lr": 1e-2}
    expected = list(oracles.deyo(model, xs, is_norm, orders_from(5), **options, sgd=sgd, log=log))
    optimizer = "sgd" if sgd else "adam"
    adapted = acclimate.adapt(model, "deyo", **options, optimizer=optimizer, seed=5)
    assert close(run(adapted, xs), expected, tolerance)
    sure, chosen = (sum(column) for column in zip(*log, strict=True))
    assert 0 < chosen < sure < n * 16


def test_deyo_normalises_a_single_sure_sample_with_the_source_s_statistics():
    model = sharp_model("batch_norm")
    x = stream(n=1)[0]
    entropies = entropy(oracles.batch_mode(model)(x).detach()).sort().values
    limit = float(entropies[:2].mean()) / math.log(4)
    options = {"max_entropy": limit, "min_drop": -1.0, "lr": 1e-2}
    log, orders = [], orders_from(0)
    # Adam would hide the weight of a lone sample, which is all that its second pass decides.
    expected = list(oracles.deyo(model, [x, x], is_norm, orders, **options, sgd=True, log=log))
    assert log[0] == (1, 1)
    adapted = acclimate.adapt(model, "deyo", **options, optimizer="sgd")
    assert close(run(adapted, [x, x]), expected, 1e-8)


def test_deyo_takes_single_samples_where_no_batch_is_needed():
    adapted = acclimate.adapt(sharp_model("vit"), "deyo", max_entropy=1.5, min_drop=-1.0)
    run(adapted, [x[:1] for x in stream()])
    assert adapted.counts.updates == 5
