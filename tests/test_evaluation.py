"""Evaluation against a plain loop, and the stream that resets."""

from __future__ import annotations

import dataclasses
import math
import pickle

import pytest
import torch

import acclimate
from acclimate import ModelInfo
from acclimate.streams import Batch, Domain, reset_each
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises


def domains(n=20):
    result = []
    for seed, name in enumerate(("dark", "bright")):
        batches = tiny_batches(4, 8, seed)
        x, y = (torch.cat(parts)[:n] for parts in zip(*batches, strict=True))
        result.append(Domain(name, x * (0.5 + 0.5 * seed), y))
    return result


def test_the_numbers_are_those_of_the_plain_loop():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent", lr=0.05)
    wrong, seen, entropies = {}, {}, []
    for batch in reset_each(domains(), 8, seed=1):
        if batch.reset:
            adapted.reset()
        logits = adapted(batch.x)
        wrong[batch.domain] = wrong.get(batch.domain, 0) + int((logits.argmax(1) != batch.y).sum())
        seen[batch.domain] = seen.get(batch.domain, 0) + len(batch.x)
        p = logits.double().softmax(1)
        entropies.append(float(-(p * p.log()).sum(1).mean()))
    result = acclimate.evaluate(adapted, reset_each(domains(), 8, seed=1))
    assert result.error_by_domain == {name: wrong[name] / seen[name] for name in seen}
    assert result.error == sum(wrong[name] / seen[name] for name in seen) / 2
    assert result.n == 40
    # In float32, of at most log 4: each has a relative error of some 1e-7.
    found = [record.entropy for record in result.records]
    assert found == pytest.approx(entropies, rel=1e-5)
    assert [record.n for record in result.records] == [8, 8, 4, 8, 8, 4]
    assert all(record.ms > 0 for record in result.records)
    assert result.images_per_second > 0
    assert result.ms_per_batch > 0


def test_every_sample_comes_once_and_resets_are_marked():
    batches = list(reset_each(domains(), 8, seed=3))
    for domain in domains():
        own = [batch for batch in batches if batch.domain == domain.name]
        assert [batch.reset for batch in own] == [True, False, False]
        found = torch.cat([batch.x for batch in own]).flatten(1)
        assert sorted(map(tuple, found.tolist())) == sorted(
            map(tuple, domain.x.flatten(1).tolist())
        )
    kept = torch.cat([batch.x for batch in reset_each(domains()[:1], 8)])
    assert torch.equal(kept, domains()[0].x)
    assert not torch.equal(torch.cat([b.x for b in batches[:3]]), kept)


def test_models_that_wrap_their_logits():
    for name in ("returns_dict", "returns_object"):
        adapted = acclimate.adapt(tiny_model(name), "norm")
        assert 0 <= acclimate.evaluate(adapted, reset_each(domains(), 8)).error <= 1
    adapted = acclimate.adapt(tiny_model("two_heads"), "norm", info=ModelInfo(logits_at=1))
    assert 0 <= acclimate.evaluate(adapted, reset_each(domains(), 8)).error <= 1


def test_streams_that_cannot_be_measured():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "norm")
    with raises("empty_source"):
        acclimate.evaluate(adapted, [])
    with raises("out_of_range", option="batch_size", found=0):
        list(reset_each(domains(), 0))
    with raises("count_mismatch", expected=4, found=3):
        Domain("odd", torch.rand(4, 3, 8, 8), torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize(
    ("change", "code", "data", "n_seen"),
    [
        ({"y": torch.zeros(5, dtype=torch.long)}, "wrong_shape", {"found": (5,)}, 0),
        ({"y": torch.zeros(6)}, "wrong_dtype", {"found": "float32"}, 0),
        (
            {"y": torch.tensor([0, 1, 2, 3, 4, 0])},
            "wrong_labels",
            {"found": (4,), "n_classes": 4},
            1,
        ),
        ({"y": torch.tensor([0, 1, 2, 3, -1, 0])}, "wrong_labels", {"found": (-1,)}, 1),
        ({"domains": ("a", "b")}, "count_mismatch", {"expected": 6, "found": 2}, 0),
        ({"n_new": 0}, "out_of_range", {"option": "n_new", "found": 0}, 0),
        ({"n_new": 7}, "out_of_range", {"option": "n_new", "found": 7}, 0),
    ],
)
def test_batches_that_cannot_be_measured(change, code, data, n_seen):
    """What can be known beforehand is refused before the method sees the batch."""
    x, y = (part[:6] for part in tiny_batches(1)[0])
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent")
    batch = dataclasses.replace(Batch(x, y, "a"), **change)
    with raises(code, **data):
        acclimate.evaluate(adapted, [batch])
    assert adapted.counts.batches == n_seen


def test_labels_never_reach_the_method(monkeypatch):
    seen = []
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent", lr=0.05)
    forward = adapted.forward
    monkeypatch.setattr(adapted, "forward", lambda *a, **k: seen.append((a, k)) or forward(*a, **k))
    stream = list(reset_each(domains(), 8))
    result = acclimate.evaluate(adapted, stream, keep_predictions=True)
    assert len(seen) == 6
    for batch, (given, named) in zip(stream, seen, strict=True):
        assert len(given) == 1
        assert torch.equal(given[0], batch.x)
        assert named == {}
    # And with other labels it predicts and learns the same.
    other = [dataclasses.replace(batch, y=(batch.y + 1) % 4) for batch in stream]
    again = acclimate.evaluate(adapted, other, keep_predictions=True)
    for batch, one, two in zip(other, result.records, again.records, strict=True):
        assert torch.equal(one.predictions, two.predictions)
        assert one.entropy == two.entropy
        assert two.n_errors == int((two.predictions != batch.y).sum())


def test_predictions_are_yielded_but_kept_only_if_asked_for():
    stream = reset_each(domains(), 8)
    adapted = acclimate.adapt(tiny_model("batch_norm"), "norm")
    yielded = list(acclimate.iter_evaluate(adapted, stream))
    kept = acclimate.evaluate(adapted, stream, keep_predictions=True)
    for one, two in zip(yielded, kept.records, strict=True):
        assert torch.equal(one.predictions, two.predictions)
        assert len(one.predictions) == one.n
    assert all(r.predictions is None for r in acclimate.evaluate(adapted, stream).records)


def test_what_is_kept_does_not_grow_with_samples():
    """Records of batches ten times as large, and sums over ten times the samples, are as large."""
    sizes = []
    for n in (4, 40):
        x, y = (torch.cat(parts) for parts in zip(*tiny_batches(n // 4, 4), strict=True))
        adapted = acclimate.adapt(tiny_model("batch_norm"), "norm")
        result = acclimate.evaluate(adapted, (Batch(x, y, "a") for _ in range(20)))
        assert result.n == 20 * n
        same = [dataclasses.replace(r, n=1, n_errors=0, by_domain={}) for r in result.records]
        sizes.append(len(pickle.dumps((same, result.sums))))
    assert sizes[0] == pytest.approx(sizes[1], abs=400)  # numbers are written in fewer digits


def test_logits_that_are_no_numbers_are_told():
    """Nothing is hidden: the mean is no number, and the error is that of the plain loop."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    with torch.no_grad():
        model[1].weight[0, 0] = math.nan
    x, y = torch.ones(2, 1, 2, 2), torch.tensor([0, 1])
    result = acclimate.evaluate(acclimate.adapt(model, "source"), [Batch(x, y, "a")])
    assert math.isnan(result.nll)
    assert math.isnan(result.ece)
    assert result.error == float((model(x).argmax(1) != y).float().mean())
    assert result.to_dict()["nll"] is None


def test_a_plain_model_and_the_batches_of_a_loader_are_refused_with_what_to_pass():
    with raises("not_adapted", found="ConvNet") as caught:
        acclimate.evaluate(tiny_model("batch_norm"), reset_each(domains(), 8))
    assert 'acclimate.adapt(model, "source")' in str(caught.value)
    adapted, loader = acclimate.adapt(tiny_model("batch_norm"), "source"), tiny_batches(2)
    with raises("wrong_type", option="stream", found="tuple") as caught:
        acclimate.evaluate(adapted, loader)
    assert 'pass (Batch(x, y, "test") for x, y in loader).' in str(caught.value)
    result = acclimate.evaluate(adapted, (Batch(x, y, "test") for x, y in loader))
    assert result.n == sum(len(y) for _, y in loader)
