"""The summary of a stream against slow loops: domains, classes, probes, resets, passes."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

import acclimate
from acclimate import streams
from acclimate.methods.config import Config
from acclimate.metrics import Group
from acclimate.streams import Batch, Stream
from acclimate.testing.models import tiny_model
from tests.codes import raises
from tests.streams.domains import tiny_domains
from tests.torchmetrics_compat import classification


def adapt(name="norm", **options):
    return acclimate.adapt(tiny_model("batch_norm"), name, **options)


def doubled(stream):
    """The batches in double precision: whoever sums in another order finds the same to 1e-9."""
    return [dataclasses.replace(batch, x=batch.x.double()) for batch in stream]


def adapt_double(name="norm", **options):
    return acclimate.adapt(tiny_model("batch_norm").double(), name, **options)


class Table(nn.Module):
    """A model that looks its logits up: the first pixel of an image is a row's number."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x):
        return self.logits[x[:, 0, 0, 0].long()]


def numbered(rows, y, domain="a", **options):
    x = torch.zeros(len(rows), 1, 1, 1)
    x[:, 0, 0, 0] = torch.tensor(rows)
    return Batch(x, torch.tensor(y), domain, **options)


class Moody(acclimate.Method):
    """Skips every third batch since the last reset, and says the guard restored every second."""

    name = "moody"

    def step(self, x):
        if self.counts.batches % 3 == 0:
            self.counts.skip("mood")
        if self.counts.batches % 2 == 0:
            self.counts.restored += 1
        return super().step(x)


def moody():
    return Moody(tiny_model("batch_norm"), Config())


def test_mixtures_are_measured_by_domain_and_by_class():
    stream = doubled(streams.mixed(tiny_domains(), 10, seed=2))
    result = acclimate.evaluate(adapt_double(), stream)
    samples = {"a": [], "b": []}  # (logits, label), by a plain loop
    adapted = adapt_double()
    for batch in stream:
        for name, row, label in zip(batch.domains, adapted(batch.x), batch.y, strict=True):
            samples[name].append((row, int(label)))
    everything = [*samples["a"], *samples["b"]]
    for name, own in (*samples.items(), (None, everything)):
        found = result.whole if name is None else result.sums_by_domain[name]
        wrong = [int(row.argmax()) != label for row, label in own]
        nll = [-float(row.log_softmax(0)[label]) for row, label in own]
        confidence = [float(row.softmax(0).max()) for row, _ in own]
        assert found.n == len(own)
        assert found.error == sum(wrong) / len(own)
        assert found.nll == pytest.approx(sum(nll) / len(own), abs=1e-9)
        assert found.confidence == pytest.approx(sum(confidence) / len(own), abs=1e-9)
        for label, error in found.error_by_class.items():
            of_class = [w for w, (_, other) in zip(wrong, own, strict=True) if other == label]
            assert error == sum(of_class) / len(of_class)
    predicted = [int(row.argmax()) for row, _ in everything]
    assert result.histogram == tuple(predicted.count(k) for k in range(4))
    assert result.class_shares == tuple(predicted.count(k) / 48 for k in range(4))
    assert result.error_by_class == result.whole.error_by_class
    for name in ("nll", "entropy", "confidence"):  # by records, and by sums over samples
        assert getattr(result, name) == pytest.approx(getattr(result.whole, name), abs=1e-9)


def test_calibration_of_a_stream_is_that_of_torchmetrics():
    stream = doubled(streams.continual(tiny_domains(), 7))
    metric = classification.MulticlassCalibrationError(4, n_bins=15, norm="l1")
    adapted = adapt_double("tent", lr=0.01)
    for batch in stream:
        metric.update(adapted(batch.x).softmax(1), batch.y)
    result = acclimate.evaluate(adapt_double("tent", lr=0.01), stream)
    # The metric itself sums the 48 confidences in float32.
    assert result.ece == pytest.approx(float(metric.compute()), abs=1e-6)
    assert 0 <= result.adaptive_ece <= 1


def test_windows_count_each_sample_once_learned_from_or_not():
    """Only every third window is learned from; all new samples count."""
    logits = 2 * torch.eye(4)
    rows, y = [0, 1, 2, 3, 0, 1, 2, 3, 0], [0, 1, 0, 3, 1, 1, 2, 3, 2]
    base = Stream("rows", lambda: iter([numbered(rows, y)]))
    adapted = acclimate.adapt(Table(logits), "source")
    result = acclimate.evaluate(adapted, streams.sliding_window(base, 3))
    assert [record.learned for record in result.records] == [False, False, True] * 3
    assert not any(record.is_probe for record in result.records)
    assert result.n == result.whole.n == 9
    assert result.error == result.error_by_domain["a"] == result.whole.error == 3 / 9
    assert result.histogram == (3, 2, 2, 2)


def test_windows_over_mixtures_count_the_domain_of_the_newest_sample():
    """Domain "a" is always predicted right, "b" never; a window shows both."""
    rows, y, names = [0, 1, 2, 3, 0, 1], [0, 0, 2, 1, 0, 0], ("a", "b", "a", "b", "a", "b")
    base = Stream("rows", lambda: iter([numbered(rows, y, "mixed", domains=names)]))
    adapted = acclimate.adapt(Table(2 * torch.eye(4)), "source")
    result = acclimate.evaluate(adapted, streams.sliding_window(base, 2))
    assert result.error_by_domain == {"a": 0.0, "b": 1.0}
    assert {name: own.error for name, own in result.sums_by_domain.items()} == {"a": 0, "b": 1}


def test_forgetting_is_told_by_probes():
    """The clean set is probed after each domain; its errors are set by hand, 1, 3 and 2 of 4."""
    logits = 2 * torch.eye(4)
    rows = [0, 1, 2, 3]
    probes = [[0, 1, 2, 0], [1, 0, 3, 3], [0, 1, 3, 2]]
    batches = []
    for domain, labels in zip(("a", "b", "a"), probes, strict=True):
        batches.append(numbered([0, 1], [0, 1], domain))
        for part in (slice(0, 3), slice(3, 4)):
            name = f"clean after {domain}"
            batches.append(numbered(rows[part], labels[part], name, learns=False))
    result = acclimate.evaluate(acclimate.adapt(Table(logits), "source"), batches)
    found = [(p.domain, p.index, p.n, p.n_errors, p.error) for p in result.probes]
    assert found == [
        ("clean after a", 1, 4, 1, 0.25),
        ("clean after b", 4, 4, 3, 0.75),
        ("clean after a", 7, 4, 2, 0.5),
    ]
    assert result.forgetting == 0.25
    assert result.error == result.whole.error == 0  # probes do not count
    assert result.histogram == (3, 3, 0, 0)
    assert result.n == 18
    assert result.sums_by_domain["clean after b"].error == 0.75
    assert result.to_dict()["forgetting"] == 0.25
    assert result.to_dict()["probes"][1]["error"] == 0.75


def test_forgetting_needs_two_probes():
    stream = streams.with_clean_probe(streams.continual(tiny_domains("a"), 8), tiny_domains()[1], 8)
    one = acclimate.evaluate(adapt(), stream)
    with raises("not_recorded", what="probes"):
        _ = one.forgetting
    assert one.to_dict()["forgetting"] is None


def test_a_stream_of_probes_alone_is_measured_too():
    stream = doubled(streams.continual(tiny_domains(), 8))
    probes = [dataclasses.replace(batch, learns=False) for batch in stream]
    result = acclimate.evaluate(adapt_double("tent"), probes)
    learned = acclimate.evaluate(adapt_double("norm"), stream)
    assert all(record.is_probe for record in result.records)
    assert result.error == learned.error
    assert result.ece == pytest.approx(learned.ece, abs=1e-9)
    assert math.isnan(result.forwards_per_batch)
    assert result.to_dict()["forwards_per_batch"] is None


def test_costs_are_those_of_the_batch():
    result = acclimate.evaluate(adapt("tent"), streams.reset_each(tiny_domains(), 8))
    assert [(r.n_forwards, r.n_backwards, r.updated) for r in result.records] == [(1, 1, True)] * 6
    assert (result.forwards_per_batch, result.backwards_per_batch) == (1, 1)
    frozen = acclimate.evaluate(adapt("source"), streams.reset_each(tiny_domains(), 8))
    assert (frozen.forwards_per_batch, frozen.backwards_per_batch) == (1, 0)
    assert not any(record.updated for record in frozen.records)
    probed = streams.with_clean_probe(streams.continual(tiny_domains(), 8), tiny_domains()[0], 8)
    assert acclimate.evaluate(adapt("tent"), probed).backwards_per_batch == 1
    if result.peak_memory is not None:
        assert result.peak_memory == max(record.peak_memory for record in result.records)
        assert result.peak_memory > 10_000_000


def test_skipped_and_restored_are_summed_over_resets():
    adapted = moody()
    adapted(tiny_domains()[0].x[:4])  # skipped before the stream: not part of it
    result = acclimate.evaluate(adapted, streams.reset_each(tiny_domains(n=20), 4))
    assert [record.n_skipped for record in result.records] == [1, 1, 1, 2, 2] * 2
    assert [r.skipped for r in result.records] == ["mood", None, None, "mood", None] * 2
    assert result.skipped == {"mood": 4}
    assert result.n_skipped == 4
    assert result.n_restored == 6
    adapted = moody()
    adapted(tiny_domains()[0].x[:4])
    unreset = list(streams.continual(tiny_domains("a", n=20), 4))[1:]
    assert acclimate.evaluate(adapted, unreset).n_skipped == 1


def test_passes_have_measures_of_their_own():
    stream = streams.epochs(streams.reset_each(tiny_domains(), 8), 2)
    result = acclimate.evaluate(adapt("tent", lr=0.05), stream)
    assert set(result.sums) == {Group(k, name) for k in (1, 2) for name in "ab"}
    first = acclimate.evaluate(adapt("tent", lr=0.05), streams.reset_each(tiny_domains(), 8))
    assert result.of_epoch(1).ece == first.ece
    assert result.of_epoch(1).histogram == first.histogram
    assert result.of_epoch(1).error == first.error
    assert result.of_epoch(2).nll != first.nll
    assert result.whole.n == 96
