"""Single images, clean and corrupted in turns, and foreign images, which never count."""

from __future__ import annotations

import dataclasses
import math
from itertools import groupby

import numpy as np
import pytest
import torch

import acclimate
from acclimate import streams
from acclimate.errors import BadInput
from acclimate.streams import Batch, Domain
from acclimate.testing.dense_models import tiny_masks
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises
from tests.streams.domains import domain, numbers, tiny_domains


def test_single_images_reset_before_each_domain():
    stream = streams.single_images([domain("a", 5), domain("b", 3)], seed=1)
    batches = list(stream)
    assert [len(batch.x) for batch in batches] == [1] * 8
    assert [batch.reset for batch in batches] == [True, *[False] * 4, True, False, False]
    assert sorted(numbers(batches[:5])) == list(range(5))
    assert numbers(batches) == numbers(streams.reset_each([domain("a", 5), domain("b", 3)], 4, 1))
    assert numbers(stream) == numbers(batches)
    assert "single images" in stream.protocol


@pytest.mark.parametrize(("period", "seed"), [(1, None), (1, 0), (2, 3), (9, 1)])
def test_clean_and_corrupted_come_in_turns(period, seed):
    domains, clean = [domain("a", 22), domain("b", 7)], domain("clean", 9)
    stream = streams.alternating(domains, clean, period, 4, seed)
    batches = list(stream)
    names = [batch.domain for batch in batches]
    runs = [(name, len(list(run))) for name, run in groupby(names)]
    assert [name == "clean" for name, _ in runs] == [True, False] * (len(runs) // 2)
    for (_, n_clean), (_, n) in zip(runs[::2], runs[1::2], strict=True):
        assert n_clean == n <= period
    assert names.count("a") == 6
    assert names.count("b") == 2
    assert names.count("clean") == 8
    for own in domains:
        found = numbers(batch for batch in batches if batch.domain == own.name)
        assert sorted(found) == list(range(len(own)))
    spare = numbers(batch for batch in batches if batch.domain == "clean")
    for start in range(0, len(spare) - 9, 9):  # recycled: all of them before any comes again
        assert sorted(spare[start : start + 9]) == list(range(9))
    if seed is None:
        assert spare == [number % 9 for number in range(32)]
    assert sum(batch.reset for batch in batches) == batches[0].reset == 1
    assert numbers(stream) == numbers(batches)


def test_turns_need_two_kinds():
    clean = domain("clean", 4)
    with raises("duplicate", BadInput, name="clean"):
        streams.alternating([clean], clean)
    with raises("out_of_range", BadInput, option="period", found=0):
        streams.alternating([domain("a", 4)], clean, 0)
    with raises("empty_source", BadInput):
        streams.alternating([], clean)
    with raises("empty_source", BadInput):
        streams.alternating([domain("a", 4)], domain("clean", 0))


# Foreign images ---------------------------------------------------------------------------------


def test_own_samples_come_once_and_foreign_ones_are_marked():
    domains = [domain("a", 22), domain("b", 5)]
    stream = streams.foreign(domains, 0.25, 8, seed=1)
    batches = list(stream)
    assert [len(batch.x) for batch in batches] == [8, 8, 8, 6, 7]
    assert all(int((~batch.counted).sum()) == 2 for batch in batches)
    for own in domains:
        found = [batch for batch in batches if batch.domain == own.name]
        x = torch.cat([batch.x[batch.counted] for batch in found])[:, 0, 0, 0].long()
        y = torch.cat([batch.y[batch.counted] for batch in found])
        assert sorted(x.tolist()) == list(range(len(own)))
        assert torch.equal(own.y[x], y)
        noise = torch.cat([batch.x[~batch.counted] for batch in found])
        # The values of these samples are from 0 to the number of the last one.
        assert noise.min() >= 0
        assert 1 < noise.max() <= len(own) - 1
    assert all((batch.y[~batch.counted] < 0).all() for batch in batches)
    places = {tuple(batch.counted.tolist()) for batch in batches}
    assert len(places) > 1  # not always at the end
    assert torch.equal(torch.cat([b.x for b in stream]), torch.cat([b.x for b in batches]))
    assert sum(batch.reset for batch in batches) == batches[0].reset == 1
    assert "25 % foreign images (uniform noise)" in stream.protocol


def test_noise_of_images_in_bytes_is_uniform():
    pixels = np.full((90, 8, 8, 3), 77, np.uint8)
    stream = streams.foreign([Domain("a", pixels, np.zeros(90))], 0.1, 100)
    (batch,) = stream
    noise = batch.x[~batch.counted].flatten()
    assert 0 <= noise.min() < 0.01
    assert 0.99 < noise.max() <= 1
    assert abs(float(noise.mean()) - 0.5) < 6 * math.sqrt(1 / 12 / len(noise))


def test_foreign_images_from_another_domain():
    other = Domain(
        "other", 1000 + torch.arange(5.0)[:, None, None, None].expand(5, 1, 2, 2), [0] * 5
    )
    batches = list(streams.foreign([domain("a", 20)], 0.2, 5, 0, other))
    added = torch.cat([batch.x[~batch.counted] for batch in batches])[:, 0, 0, 0]
    assert sorted(added.tolist()) == [1000.0, 1001.0, 1002.0, 1003.0, 1004.0]
    wide = Domain("wide", torch.rand(5, 1, 2, 3), [0] * 5)
    with raises("wrong_shape", BadInput, found=(1, 2, 3)):
        streams.foreign([domain("a", 20)], 0.2, 5, 0, wide)
    for share, size in ((0.0, 200), (1.0, 200), (-0.1, 200), (math.nan, 200), (0.1, 4), (0.9, 2)):
        with raises("out_of_range", BadInput, option="share"):
            streams.foreign([domain("a", 20)], share, size)


class Kept:
    """A metric that keeps all that it is given."""

    def __init__(self):
        self.labels = []

    def update(self, probs, y):
        assert len(probs) == len(y) > 0
        self.labels += y.tolist()

    def compute(self):
        return {"n": len(self.labels), "sum": sum(self.labels)}

    def reset(self):
        self.labels = []


def summary(result):
    """All of a result but for times and memory."""
    records = [record.to_dict() for record in result.records]
    for record in records:
        del record["ms"], record["peak_memory"]
    sums = {group: own.to_dict() for group, own in result.sums.items()}
    return records, sums, result.extra, result.extra_by_domain


@pytest.mark.parametrize("method", ["source", "tent"])
@pytest.mark.parametrize("window", [0, 3])
def test_labels_of_foreign_images_never_count(method, window):
    base = streams.foreign(tiny_domains(), 0.25, 8)
    found = []
    for label in (-100, 0, 3, 10**6):

        def relabel(batch, label=label):
            return dataclasses.replace(batch, y=batch.y.where(batch.counted, label))

        stream = streams.Stream("relabelled", lambda relabel=relabel: map(relabel, base))
        if window:
            stream = streams.sliding_window(stream, window)
        adapted = acclimate.adapt(tiny_model("batch_norm"), method)
        found.append(summary(acclimate.evaluate(adapted, stream, metrics=Kept())))
    assert found[1:] == found[:-1]
    assert found[0][2]["n"] == 48


def test_samples_that_do_not_count_change_no_measure():
    """A model that predicts each sample alone has the same measures with and without them."""
    model = tiny_model("group_norm").double()
    domains = [Domain(d.name, d.x.double(), d.y) for d in tiny_domains()]
    adapted = acclimate.adapt(model, "source")
    without = acclimate.evaluate(adapted, streams.continual(domains, 6, 0), metrics=Kept())
    for stream in (
        streams.foreign(domains, 0.25, 8, 0),
        streams.sliding_window(streams.foreign(domains, 0.25, 8, 0), 3),
    ):
        result = acclimate.evaluate(adapted, stream, metrics=Kept(), keep_predictions=True)
        assert (result.n, result.n_images) == (without.n, without.n_images) == (48, 48)
        assert result.error_by_domain == without.error_by_domain
        assert result.extra == without.extra
        assert result.extra_by_domain == without.extra_by_domain
        for name in ("nll", "entropy", "confidence"):
            assert getattr(result, name) == pytest.approx(getattr(without, name), rel=1e-9)
        assert (result.whole.n_by_class == without.whole.n_by_class).all()
        assert (result.whole.n_errors_by_class == without.whole.n_errors_by_class).all()
        assert (result.whole.n_predicted == without.whole.n_predicted).all()
        assert sum(len(record.predictions) for record in result.records) == 48


def test_foreign_images_are_learned_from():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent", lr=0.05)
    base = list(streams.foreign(tiny_domains(), 0.5, 8))
    without = [
        dataclasses.replace(b, x=b.x[b.counted], y=b.y[b.counted], counted=None) for b in base
    ]
    with_them = acclimate.evaluate(adapted, base)
    assert [record.n for record in with_them.records] == [4] * 12
    assert with_them.nll != acclimate.evaluate(adapted, without).nll


def test_an_oracle_learns_from_counted_samples_only():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "supervised")
    stream = streams.foreign(tiny_domains(), 0.25, 8)
    result = acclimate.evaluate(adapted, stream, reveal_labels=True)
    assert all(math.isfinite(record.nll) and record.updated for record in result.records)


def test_masks_of_foreign_images_do_not_count():
    x, y = (torch.cat(parts).double() for parts in zip(*tiny_masks(2), strict=True))
    domains = [Domain("fog", x, y.long())]
    adapted = acclimate.adapt(tiny_model("dense").double(), "source")
    without = acclimate.evaluate(adapted, streams.continual(domains, 3))
    stream = streams.foreign(domains, 0.25, 4)
    for own in (stream, streams.sliding_window(stream, 2)):
        result = acclimate.evaluate(adapted, own)
        assert (result.n, result.n_images) == (without.n, without.n_images)
        assert (result.confusion == without.confusion).all()


def test_what_batches_say_of_their_samples_is_checked():
    x, y = (part[:6] for part in tiny_batches(1)[0])
    adapted = acclimate.adapt(tiny_model("batch_norm"), "norm")
    none = torch.zeros(6, dtype=torch.bool)
    for counted, code, data in (
        (none[:5], "wrong_shape", {"found": (5,)}),
        (torch.ones(6), "wrong_type", {"option": "counted", "found": "float32"}),
        ([True] * 6, "wrong_type", {"option": "counted", "found": "list"}),
        (none, "no_samples_measured", {}),
    ):
        with raises(code, BadInput, **data):
            acclimate.evaluate(adapted, [Batch(x, y, "a", counted=counted)])
    # A batch without a sample that counts is no obstacle if there are others.
    batches = [Batch(x, y, "a", counted=none), Batch(x, y, "b", counted=~none)]
    result = acclimate.evaluate(adapted, batches, metrics=Kept())
    assert [record.n for record in result.records] == [0, 6]
    assert result.error_by_domain.keys() == {"b"}
    assert result.extra["n"] == 6
    wrong = [Batch(x, y + 10, "a", counted=torch.arange(6) == 2)]
    with raises("wrong_labels", found=(int(y[2]) + 10,)):
        acclimate.evaluate(adapted, wrong)
