"""Evaluation against a plain loop, and the stream that resets."""

from __future__ import annotations

import pytest
import torch

import acclimate
from acclimate.errors import BadInput
from acclimate.streams import Domain, reset_each
from acclimate.testing.models import tiny_batches, tiny_model


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
        p = logits.softmax(1)
        entropies.append(float(-(p * p.log()).sum(1).mean()))
    result = acclimate.evaluate(adapted, reset_each(domains(), 8, seed=1))
    assert result.error_by_domain == {name: wrong[name] / seen[name] for name in seen}
    assert result.error == sum(wrong[name] / seen[name] for name in seen) / 2
    assert result.n == 40
    assert [record.entropy for record in result.records] == pytest.approx(entropies)
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
    adapted = acclimate.adapt(tiny_model("two_heads"), "norm", logits_at=1)
    assert 0 <= acclimate.evaluate(adapted, reset_each(domains(), 8)).error <= 1


def test_streams_that_cannot_be_measured():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "norm")
    with pytest.raises(BadInput, match="ended before its first batch"):
        acclimate.evaluate(adapted, [])
    with pytest.raises(BadInput, match="at least 1"):
        list(reset_each(domains(), 0))
    with pytest.raises(BadInput, match="4 samples, but 3 labels"):
        Domain("odd", torch.rand(4, 3, 8, 8), torch.zeros(3, dtype=torch.long))
