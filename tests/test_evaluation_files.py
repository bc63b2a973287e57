"""What an evaluation gives away: metrics of torchmetrics, files of records and sums."""

from __future__ import annotations

import copy
import dataclasses
import json
import math

import pytest
import torch

import acclimate
from acclimate import streams
from acclimate.evaluation import Collector, Record, Result
from acclimate.metrics import Sums, pack_sums, pool, unpack_sums
from acclimate.testing.models import tiny_model
from tests.codes import raises
from tests.report.records import make_run
from tests.streams.domains import tiny_domains
from tests.torchmetrics_compat import classification, torchmetrics


def adapt(name="norm", **options):
    return acclimate.adapt(tiny_model("batch_norm"), name, **options)


def test_records_alone_tell_no_calibration():
    result = make_run("norm", 0, {"fog": 0.3}).result
    assert 0 < result.error < 1
    for name in ("ece", "adaptive_ece", "histogram", "class_shares", "error_by_class", "whole"):
        with raises("not_recorded", what="measures"):
            getattr(result, name)
    summary = result.to_dict()
    assert summary["ece"] is None
    assert summary["confidence"] is None
    assert summary["error"] == result.error


def test_a_result_survives_files():
    stream = streams.with_clean_probe(streams.continual(tiny_domains(), 8), tiny_domains()[0], 8)
    result = acclimate.evaluate(adapt("tent"), stream)
    lines = [json.dumps(record.to_dict(), allow_nan=False) for record in result.records]
    packed = json.dumps(pack_sums(result.sums), allow_nan=False)
    again = Result(
        tuple(Record.from_dict(json.loads(line)) for line in lines),
        unpack_sums(json.loads(packed)),
    )
    assert again.records == result.records
    assert again.to_dict() == result.to_dict()
    json.dumps(result.to_dict(), allow_nan=False)
    twice = pool([result, again])
    assert (twice.n, twice.whole.n) == (2 * result.n, 2 * result.whole.n)
    assert twice.ece == pytest.approx(result.ece, abs=1e-12)
    assert pool([result, Result(again.records)]).sums == {}
    with raises("count_mismatch", expected=result.n - result.records[-1].n, found=result.n):
        Result(result.records[:-1], result.sums)
    with raises("wrong_fields", missing=("epoch", "domain", "is_probe"), unknown=()):
        unpack_sums([Sums(2).to_dict()])


def test_a_record_that_is_no_number_survives_a_file():
    record = make_run("norm", 0, {"fog": 0.3}).result.records[0]
    record = dataclasses.replace(record, nll=math.nan, peak_memory=None)
    again = Record.from_dict(json.loads(json.dumps(record.to_dict(), allow_nan=False)))
    assert math.isnan(again.nll)
    assert again.peak_memory is None
    assert again.predictions is None
    assert again.by_domain == record.by_domain
    line = record.to_dict()
    with raises("wrong_fields", missing=(), unknown=("colour",)):
        Record.from_dict({**line, "colour": 1})
    del line["n"]
    with raises("wrong_fields", missing=("n",), unknown=()):
        Record.from_dict(line)


def test_metrics_of_torchmetrics_over_all_and_by_domain():
    # In double precision no two probabilities are so near that rounding could change their order.
    a, b, clean = (dataclasses.replace(d, x=d.x.double()) for d in tiny_domains("a", "b", "clean"))
    base = streams.mixed([a, b], 10, seed=2)
    stream = streams.with_clean_probe(base, clean, 8)
    kinds = {"auroc": classification.MulticlassAUROC, "f1": classification.MulticlassF1Score}
    collection = torchmetrics.MetricCollection({name: kind(4) for name, kind in kinds.items()})
    model = tiny_model("batch_norm").double()
    result = acclimate.evaluate(
        acclimate.adapt(copy.deepcopy(model), "norm"), stream, metrics=collection
    )
    adapted = acclimate.adapt(model, "norm")
    probs, y, names = [], [], []
    for batch in base:
        probs.append(adapted(batch.x).softmax(1))
        y.append(batch.y)
        names += batch.domains
    probs, y = torch.cat(probs), torch.cat(y)
    for key, kind in kinds.items():
        assert float(result.extra[key]) == pytest.approx(float(kind(4)(probs, y)), abs=1e-6)
        for name in ("a", "b"):
            rows = torch.tensor([other == name for other in names])
            expected = float(kind(4)(probs[rows], y[rows]))
            assert float(result.extra_by_domain[name][key]) == pytest.approx(expected, abs=1e-6)
    assert list(result.extra_by_domain) == list(result.error_by_domain)
    assert result.to_dict()["extra"]["f1"] == pytest.approx(float(result.extra["f1"]))
    # The one that was given is copied, and here stays without a sample.
    assert all(metric.update_count == 0 for metric in collection.values())


def test_one_metric_goes_by_its_class_and_can_be_watched():
    stream = streams.with_clean_probe(streams.continual(tiny_domains(), 8), tiny_domains()[0], 8)
    metric = classification.MulticlassAccuracy(4, average="micro")
    result = acclimate.evaluate(adapt(), stream, metrics=metric)
    assert float(result.extra["MulticlassAccuracy"]) == pytest.approx(1 - result.error)
    seen = []
    for record in acclimate.iter_evaluate(adapt(), stream, metrics=metric):
        if not record.is_probe:
            seen.append((record.n, record.n_errors))
        right = 1 - sum(wrong for _, wrong in seen) / sum(n for n, _ in seen)
        assert float(metric.compute()) == pytest.approx(right)


def test_a_metric_that_has_seen_samples_is_copied_without_them():
    stream = streams.continual(tiny_domains(), 8)
    metric = classification.MulticlassAccuracy(4, average="micro")
    metric.update(torch.eye(4), torch.arange(4))
    result = acclimate.evaluate(adapt(), stream, metrics=metric)
    assert float(result.extra["MulticlassAccuracy"]) == pytest.approx(1 - result.error)
    assert float(metric.compute()) == 1


@pytest.mark.parametrize("metric", [["MulticlassAUROC"], classification.MulticlassAUROC, "ece"])
def test_what_is_no_metric(metric):
    with raises("wrong_type", option="metrics"):
        acclimate.evaluate(adapt(), streams.continual(tiny_domains(), 8), metrics=metric)
    with raises("wrong_type", option="metrics"):
        next(acclimate.iter_evaluate(adapt(), streams.continual(tiny_domains(), 8), metrics=metric))


def test_a_tally_is_summed_up_at_any_time():
    collector = Collector()
    records, results = [], []
    stream = streams.continual(tiny_domains(), 8)
    for record in acclimate.iter_evaluate(adapt(), stream, collector=collector):
        records.append(record)
        results.append(collector.result(records))
    assert [result.whole.n for result in results] == [8, 16, 24, 32, 40, 48]
    assert results[-1].ece == acclimate.evaluate(adapt(), stream).ece
