"""Streams by property: every sample once, order by seed, resets where they belong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import streams
from acclimate.errors import BadInput
from acclimate.streams import Domain
from tests.codes import raises
from tests.streams.domains import N_CLASSES, domain, numbers

ONCE = {
    "reset_each": streams.reset_each,
    "continual": streams.continual,
    "mixed": streams.mixed,
    "label_sorted": streams.label_sorted,
    "dirichlet": lambda d, batch_size, seed: streams.dirichlet(d, 0.1, batch_size, seed),
    "imbalanced": lambda d, batch_size, seed: streams.imbalanced(d, 50.0, batch_size, seed),
}


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(sorted(ONCE)),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    batch_size=st.integers(1, 17),
    seed=st.integers(0, 1000),
)
def test_every_sample_comes_once_and_the_seed_decides(name, sizes, batch_size, seed):
    domains = [domain(f"d{i}", n, i) for i, n in enumerate(sizes)]
    stream = ONCE[name](domains, batch_size=batch_size, seed=seed)
    batches = list(stream)
    seen = {d.name: [] for d in domains}
    for batch in batches:
        assert 1 <= len(batch.x) <= batch_size
        owners = batch.domains or (batch.domain,) * len(batch.x)
        for owner, number, y in zip(owners, numbers([batch]), batch.y.tolist(), strict=True):
            seen[owner].append(number)
            assert int(next(d for d in domains if d.name == owner).y[number]) == y
    for d in domains:
        assert sorted(seen[d.name]) == list(range(len(d)))
    assert numbers(stream) == numbers(batches)
    again = ONCE[name](domains, batch_size=batch_size, seed=seed)
    assert numbers(again) == numbers(batches)
    resets = [batch.reset for batch in batches]
    expected = len(domains) if name == "reset_each" else 1
    assert resets[0]
    assert sum(resets) == expected
    assert f"batches of {batch_size}" in str(stream)
    assert f"seed {seed}" in stream.protocol


def test_another_seed_is_another_order():
    for make in ONCE.values():
        domains = [domain("a", 60)]
        assert numbers(make(domains, batch_size=8, seed=0)) != numbers(
            make(domains, batch_size=8, seed=1)
        )


def test_own_order_without_a_seed():
    assert numbers(streams.continual([domain("a", 7)], 3)) == list(range(7))


def test_gradual_climbs_and_falls():
    levels = {c: [domain(f"{c} {s}", 4) for s in (1, 2, 3)] for c in ("fog", "snow")}
    stream = streams.gradual(levels, 4)
    names = [batch.domain for batch in stream]
    assert names == [f"{c} {s}" for c in ("fog", "snow") for s in (1, 2, 3, 2, 1)]
    assert [batch.reset for batch in stream] == [True] + [False] * 9
    assert "1…3…1" in stream.protocol


def test_recurring_repeats_the_cycle_without_a_reset():
    stream = streams.recurring([domain("a", 4), domain("b", 4)], 3, 4)
    assert [batch.domain for batch in stream] == ["a", "b"] * 3
    assert sum(batch.reset for batch in stream) == 1
    assert "recurring 3 times" in stream.protocol


def test_sorted_labels_never_fall():
    labels = torch.cat([b.y for b in streams.label_sorted([domain("a", 50)], 8)])
    assert (labels.diff() >= 0).all()


def correlation(stream):
    """Share of neighbours with the same label."""
    labels = torch.cat([batch.y for batch in stream])
    return float((labels.diff() == 0).float().mean())


def test_small_concentration_means_correlated_labels():
    domains = [domain("a", 2000)]
    even = correlation(streams.continual(domains, 64, seed=0))
    loose = correlation(streams.dirichlet(domains, 100.0, 64))
    tight = correlation(streams.dirichlet(domains, 0.05, 64))
    assert abs(even - 1 / N_CLASSES) < 0.05
    assert abs(loose - 1 / N_CLASSES) < 0.06
    assert tight > 0.5


def test_one_class_dominates_its_phase():
    domains = [domain("a", 1000)]
    labels = torch.cat([b.y for b in streams.imbalanced(domains, 1000.0, 64)])
    shares = [float((phase == k).float().mean()) for k, phase in enumerate(labels.chunk(5))]
    assert min(shares[:4]) > 0.9
    level = torch.cat([b.y for b in streams.imbalanced(domains, 1.0, 64)])
    assert max(float((p == k).float().mean()) for k, p in enumerate(level.chunk(5))) < 0.35


def test_a_share_of_clean_samples_in_each_batch():
    stream = streams.source_mixture([domain("a", 30), domain("b", 30)], domain("clean", 9), 0.4, 10)
    batches = list(stream)
    assert [len(b.x) for b in batches] == [10] * 10
    assert all(b.domains.count("clean") == 4 for b in batches)
    own = [n for b in batches for n, d in zip(numbers([b]), b.domains, strict=True) if d == "a"]
    assert sorted(own) == list(range(30))
    assert [b.reset for b in batches] == [True] + [False] * 9


def test_images_in_bytes_become_tensors_batch_by_batch():
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    (batch,) = streams.continual([Domain("bytes", images, np.array([0, 1]))], 8)
    assert batch.x.shape == (2, 3, 4, 4)
    assert torch.equal(batch.x[1, 2], torch.from_numpy(images[1, :, :, 2]).float() / 255)


@pytest.mark.parametrize(
    ("make", "code", "data"),
    [
        (lambda: streams.continual([], 4), "empty_source", {}),
        (lambda: streams.continual([domain("a", 0)], 4), "empty_source", {}),
        (
            lambda: streams.continual([domain("a", 4)], 0),
            "out_of_range",
            {"option": "batch_size", "found": 0},
        ),
        (
            lambda: streams.recurring([domain("a", 4)], 0),
            "out_of_range",
            {"option": "times", "found": 0},
        ),
        (
            lambda: streams.dirichlet([domain("a", 4)], 0.0),
            "out_of_range",
            {"option": "delta", "found": 0.0},
        ),
        (
            lambda: streams.imbalanced([domain("a", 4)], 0.5),
            "out_of_range",
            {"option": "ratio", "found": 0.5},
        ),
        (
            lambda: streams.source_mixture([domain("a", 4)], domain("c", 4), 1.0),
            "out_of_range",
            {"option": "share", "found": 1.0},
        ),
        (
            lambda: streams.epochs(streams.continual([domain("a", 4)], 2), 0),
            "out_of_range",
            {"option": "times", "found": 0},
        ),
        (
            lambda: streams.sliding_window(streams.continual([domain("a", 4)], 2), 1),
            "out_of_range",
            {"option": "size", "found": 1},
        ),
        (
            lambda: Domain("odd", torch.zeros(3, 1), torch.zeros(2)),
            "count_mismatch",
            {"expected": 3, "found": 2},
        ),
        (
            lambda: Domain("odd", [1, 2], [0, 1]),
            "wrong_type",
            {"option": "x", "found": "list"},
        ),
    ],
)
def test_unusable_arguments(make, code, data):
    with raises(code, BadInput, **data):
        make()
