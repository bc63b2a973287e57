"""Evaluation of a model under guard: records say what the guard estimated and did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import acclimate
from acclimate import Artifact
from acclimate.builtin import SPLITS, render
from acclimate.methods.method import Method
from acclimate.streams import Batch, Domain, reset_each, with_clean_probe
from tests.bench.models import tiny

OPTIONS: dict[str, Any] = {"n_samples": 64, "severities": (5,), "n_runs": 4}


def domain(name: str, n: int, split: str) -> Domain:
    images, labels = render(n, SPLITS[split])
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return Domain(name, x, torch.from_numpy(labels))


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    source = domain("source", 64, "train")
    part = acclimate.Accuracy(shifts=("saturate",), **OPTIONS)
    return acclimate.prepare(tiny(), [(source.x, source.y)], parts=[part], progress=False)


def stream() -> Iterator[Batch]:
    clean = domain("clean", 96, "test")
    domains = [Domain(name, clean.x * scale, clean.y) for name, scale in (("a", 1.0), ("b", 0.3))]
    return with_clean_probe(reset_each(domains, 16, seed=0), clean, 24)


def wrap(artifact: Artifact, guard: Any) -> Method:
    return acclimate.adapt(tiny(), "tent", artifact, guard=guard, lr=0.05)


@pytest.mark.parametrize("guard", [True, "watch"])
def test_records_say_what_the_guard_says(artifact: Artifact, guard: bool | str) -> None:
    adapted = wrap(artifact, guard)
    expected = []
    for batch in stream():
        if batch.reset:
            adapted.reset()
        if batch.learns:
            adapted(batch.x)
        else:
            with adapted.paused():
                adapted(batch.x)
        told = adapted.report()
        expected.append((told.estimate, told.answers == "source"))
    result = acclimate.evaluate(adapted, stream())
    assert [(record.estimate, record.by_source) for record in result.records] == expected
    assert any(record.estimate is not None for record in result.records)
    assert result.estimated_error is not None
    assert result.by_source is not None
    assert (result.by_source > 0) == (guard is True)
    assert result.n_rests == 0


def test_rests_are_counted_over_resets(artifact: Artifact) -> None:
    """A model whose predictions are no numbers is restored at once, and then rests."""
    guard = acclimate.Guard(artifact, rest=32)
    adapted = acclimate.adapt(tiny(), "tent", artifact, guard=guard)
    whole = adapted.infer
    adapted.step = lambda x: whole(x) * torch.nan  # type: ignore[method-assign]
    result = acclimate.evaluate(adapted, stream())
    assert result.n_restored > 0
    assert result.n_rests == sum(bool(record.rested) for record in result.records) > 0
    # At rest, both models are the same.
    source = acclimate.evaluate(acclimate.adapt(tiny(), "source"), stream())
    assert result.error_by_domain == source.error_by_domain
    assert result.by_source is not None
    assert result.by_source > 0


def test_without_a_guard_records_say_nothing_of_one() -> None:
    result = acclimate.evaluate(acclimate.adapt(tiny(), "tent"), stream())
    assert all(
        record.estimate is record.by_source is record.rested is None for record in result.records
    )
    assert result.estimated_error is None
