"""The metrics of one batch: values against their definitions, names, JSON."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch

import acclimate
from acclimate.metrics import METRICS, BatchMetrics
from acclimate.metrics.batch import measure_drift
from acclimate.streams import Domain, reset_each
from acclimate.testing.models import tiny_batches, tiny_model


def measure(adapted: acclimate.Method, x: torch.Tensor, index: int) -> BatchMetrics:
    before = copy.deepcopy(adapted.counts)
    return BatchMetrics.of_call(adapted, adapted(x), index=index, before=before, latency_ms=2.5)


def test_metrics_of_a_call_follow_their_definitions() -> None:
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent", lr=0.05)
    assert measure_drift(adapted) == 0.0
    (x, _), *_ = tiny_batches(1)
    before = copy.deepcopy(adapted.counts)
    logits = adapted(x)
    found = BatchMetrics.of_call(adapted, logits, index=7, before=before, latency_ms=2.5)
    p = logits.double().softmax(dim=1)
    assert found.entropy == pytest.approx(float(-(p * p.log()).sum(dim=1).mean()), rel=1e-5)
    assert found.confidence == pytest.approx(float(p.max(dim=1).values.mean()), rel=1e-5)
    mean = p.mean(dim=0)
    effective = math.exp(float(-(mean * mean.log()).sum()))
    assert found.effective_classes == pytest.approx(effective, rel=1e-5)
    assert (found.index, found.samples, found.updates, found.restored) == (7, len(x), 1, 0)
    assert (found.skipped, found.answered_by, found.latency_ms) == (None, "adapted", 2.5)
    assert found.source_accuracy is None
    source = adapted.initial()["modules"]
    moved = [(p, source[f"model.{name}"]) for name, p in adapted.model.named_parameters()]
    moved = [(now, old) for now, old in moved if not torch.equal(now, old)]
    distance = sum(float((now - old).detach().square().sum()) for now, old in moved)
    size = sum(float(old.square().sum()) for _, old in moved)
    # Parameters that did not move by chance would count in the norm only.
    assert found.drift == pytest.approx(math.sqrt(distance / size), rel=1e-3)


def test_a_batch_that_is_not_learned_from_says_why() -> None:
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent")
    (x, _), *_ = tiny_batches(1)
    adapted(x)
    found = measure(adapted, x[:1], 1)
    assert (found.updates, found.skipped, found.samples) == (0, "single", 1)


def test_the_line_is_json_and_numbers_leave_out_what_is_not_known() -> None:
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent")
    (x, _), *_ = tiny_batches(1)
    found = measure(adapted, x, 0)
    line = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert list(line) == list(METRICS)
    numbers = found.numbers()
    assert numbers["samples"] == len(x)
    assert not {"skipped", "answered_by", "index", "source_accuracy"} & numbers.keys()
    assert all(info.help.endswith(".") for info in METRICS.values())


def test_an_evaluated_batch_has_the_metrics_of_a_call() -> None:
    (x, y), *_ = tiny_batches(1)
    model = tiny_model("batch_norm")
    called = measure(acclimate.adapt(copy.deepcopy(model), "tent"), x, 0)
    adapted = acclimate.adapt(model, "tent")
    stream = reset_each([Domain("any", x, y)], batch_size=len(x))
    (record,) = acclimate.evaluate(adapted, stream).records
    evaluated = BatchMetrics.of_record(record).to_dict()
    for name, value in called.to_dict().items():
        if name != "latency_ms":
            assert evaluated[name] == (pytest.approx(value) if isinstance(value, float) else value)


def test_estimates_of_the_guard_have_intervals() -> None:
    from tests.metrics.test_estimates import RECORDS

    found = BatchMetrics.of_record(RECORDS[2])
    assert found.source_accuracy == 0.25
    assert found.adapted_accuracy_low == pytest.approx(0.65)
    assert found.adapted_accuracy_high == pytest.approx(0.85)
    assert (found.answered_by, found.drift) == ("adapted", None)
    assert BatchMetrics.of_record(RECORDS[1]).answered_by == "source"
