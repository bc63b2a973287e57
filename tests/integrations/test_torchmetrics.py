"""Metrics of torchmetrics along a stream: they see labels, and the method never does."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import acclimate
from acclimate import streams
from acclimate.testing.models import tiny_model
from tests.streams.domains import tiny_domains
from tests.torchmetrics_compat import classification, torchmetrics


def make_metrics() -> torchmetrics.MetricCollection:
    return torchmetrics.MetricCollection(
        {
            "accuracy": classification.MulticlassAccuracy(4, average="micro"),
            "f1": classification.MulticlassF1Score(4),
            "auroc": classification.MulticlassAUROC(4),
        }
    )


def test_metrics_are_those_of_a_loop_and_can_be_read_at_any_batch() -> None:
    stream = streams.continual(tiny_domains(), 8)
    metrics, by_hand = make_metrics(), make_metrics()
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent", lr=0.01)
    expected = []
    for batch in stream:
        by_hand.update(adapted(batch.x).softmax(1), batch.y)
        expected.append(by_hand.compute())
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent", lr=0.01)
    found = [metrics.compute() for _ in acclimate.iter_evaluate(adapted, stream, metrics)]
    for one, other in zip(found, expected, strict=True):
        assert {k: float(v) for k, v in one.items()} == pytest.approx(
            {k: float(v) for k, v in other.items()}, abs=1e-6
        )
    result = acclimate.evaluate(
        acclimate.adapt(tiny_model("batch_norm"), "tent", lr=0.01), stream, make_metrics()
    )
    assert float(result.extra["accuracy"]) == pytest.approx(1 - result.error, abs=1e-6)
    assert set(result.extra_by_domain) == {domain.name for domain in tiny_domains()}


def test_the_last_batches_can_be_watched_alone() -> None:
    stream = list(streams.continual(tiny_domains(), 8))
    last = torchmetrics.wrappers.Running(classification.MulticlassAccuracy(4, average="micro"), 2)
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent", lr=0.01)
    records = list(acclimate.iter_evaluate(adapted, stream, last))
    wrong = sum(record.n_errors for record in records[-2:])
    seen = sum(record.n for record in records[-2:])
    assert float(last.compute()) == pytest.approx(1 - wrong / seen, abs=1e-6)


def test_labels_change_metrics_only() -> None:
    stream = list(streams.continual(tiny_domains(), 8))
    wrong = [dataclasses.replace(batch, y=(batch.y + 1) % 4) for batch in stream]
    states, values = [], []
    for labelled in (stream, wrong):
        adapted = acclimate.adapt(tiny_model("batch_norm"), "tent", lr=0.01)
        result = acclimate.evaluate(adapted, labelled, make_metrics())
        states.append(adapted.model.state_dict())
        values.append(float(result.extra["accuracy"]))
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    assert values[0] != values[1]
