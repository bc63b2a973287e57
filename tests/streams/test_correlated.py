"""Correlated labels: runs of one class, Markov chains, and Dirichlet shares, against oracles."""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import streams
from acclimate.errors import BadInput
from acclimate.streams import Domain
from acclimate.streams.correlated import _draw_shares, draw_chain
from tests.codes import raises
from tests.streams.domains import domain, numbers


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    n_batches=st.integers(1, 6),
    n_classes=st.sampled_from([None, 1, 3]),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_a_class_comes_for_so_many_batches(sizes, n_batches, n_classes, batch_size, seed):
    domains = [domain(f"d{i}", n, i) for i, n in enumerate(sizes)]
    stream = streams.one_class(domains, n_batches, n_classes, batch_size, seed)
    batches = list(stream)
    assert [batch.reset for batch in batches] == [True] + [False] * (len(batches) - 1)
    assert all(len(batch.x) == batch_size for batch in batches)
    for own in domains:
        runs = [batch for batch in batches if batch.domain == own.name]
        assert all(len(set(batch.y.tolist())) == 1 for batch in runs)
        labels = [int(batch.y[0]) for batch in runs][::n_batches]
        assert [int(batch.y[0]) for batch in runs] == [k for k in labels for _ in range(n_batches)]
        there = set(own.y.tolist())
        assert len(set(labels)) == len(labels) == min(n_classes or len(there), len(there))
        for place, label in enumerate(labels):
            found = numbers(runs[place * n_batches : (place + 1) * n_batches])
            members = (own.y == label).nonzero().flatten().tolist()
            # Recycled: each time through, every sample of the class comes once.
            for start in range(0, len(found), len(members)):
                part = found[start : start + len(members)]
                assert len(set(part)) == len(part)
                assert set(part) <= set(members)
    assert numbers(stream) == numbers(batches)
    assert "samples recycled" in stream.protocol
    assert f"{n_batches} batches in a row" in stream.protocol


def test_without_a_number_a_whole_class_comes_and_each_sample_once():
    stream = streams.one_class([domain("a", 60), domain("b", 30)], batch_size=4, seed=2)
    batches = list(stream)
    for name, n in (("a", 60), ("b", 30)):
        own = [batch for batch in batches if batch.domain == name]
        assert sorted(numbers(own)) == list(range(n))
        labels = [k for k, _ in groupby(k for batch in own for k in batch.y.tolist())]
        assert len(labels) == len(set(labels))
    assert "recycled" not in stream.protocol
    long = Domain("long", torch.rand(500, 1, 1, 1), torch.arange(500) % 2)
    batches = list(streams.one_class([long], batch_size=2))
    assert [int(batch.y[0]) for batch in batches].count(0) == 100
    assert len(batches) == 200


# Markov chains ----------------------------------------------------------------------------------


def transition_matrix(n, correlation, ratio):
    """Return P as in the paper: state i stays with 1 - (1 - c) ratio^(i / (n - 1))."""
    matrix = np.zeros((n, n))
    for i in range(n):
        leave = (1 - correlation) * ratio ** (i / (n - 1))
        for j in range(n):
            matrix[i, j] = 1 - leave if i == j else leave / (n - 1)
    return matrix


@pytest.mark.parametrize(
    ("n", "correlation", "ratio"),
    [(5, 0.2, 1.0), (5, 0.9, 1.0), (4, 0.95, 10.0), (2, 0.9, 5.0), (15, 0.85, 5.0)],
)
def test_transitions_and_frequencies_are_those_of_the_chain(n, correlation, ratio):
    length = 200_000
    states = draw_chain(length, n, correlation, ratio, torch.Generator().manual_seed(3)).numpy()
    expected = transition_matrix(n, correlation, ratio)
    values, vectors = np.linalg.eig(expected.T)
    stationary = np.real(vectors[:, np.argmax(np.real(values))])
    stationary /= stationary.sum()
    assert stationary[0] / stationary[-1] == pytest.approx(ratio)
    counts = np.zeros((n, n))
    np.add.at(counts, (states[:-1], states[1:]), 1)
    visits = counts.sum(axis=1)
    # Six standard deviations of a share; of a frequency, with the correlation time of the chain.
    deviation = np.sqrt(expected * (1 - expected) / visits[:, None])
    assert (np.abs(counts / visits[:, None] - expected) < 6 * deviation + 1e-12).all()
    slowest = sorted(np.real(values))[-2]
    longer = (1 + slowest) / (1 - slowest)
    spread = np.sqrt(stationary * (1 - stationary) * longer / length)
    assert (np.abs(visits / len(states) - stationary) < 6 * spread).all()


@pytest.mark.parametrize("correlation", [0.0, 0.1, 0.25, 1.0])
def test_where_the_ratio_asks_for_too_much_shares_are_exact(correlation):
    n, ratio, length = 4, 10.0, 1000
    states = draw_chain(length, n, correlation, ratio, torch.Generator().manual_seed(0)).tolist()
    exact = np.array([ratio ** (-i / (n - 1)) for i in range(n)])
    exact *= length / exact.sum()
    counts = [states.count(i) for i in range(n)]
    assert sum(counts) == length
    assert np.abs(np.array(counts) - exact).max() < 1
    runs = [(state, len(list(run))) for state, run in groupby(states)]
    if correlation == 1:
        assert sorted(runs) == list(enumerate(counts))
    if correlation == 0:  # no state stays as long as there is another one
        assert all(length == 1 for _, length in runs[:-1])


def test_a_markov_stream_recycles_images_and_keeps_domain_and_class_apart():
    domains = [domain(name, 40, seed) for seed, name in enumerate("abc")]
    stream = streams.markov(domains, 3000, 0.9, 0.5, batch_size=32, seed=4)
    batches = list(stream)
    assert [len(batch.x) for batch in batches] == [32] * 93 + [24]
    assert [batch.reset for batch in batches] == [True] + [False] * 93
    owners = [name for batch in batches for name in batch.domains]
    labels = [k for batch in batches for k in batch.y.tolist()]
    images = {}
    for name, number, label in zip(owners, numbers(batches), labels, strict=True):
        assert int(next(d for d in domains if d.name == name).y[number]) == label
        images.setdefault((name, label), []).append(number)
    for (name, label), found in images.items():
        own = next(d for d in domains if d.name == name)
        members = (own.y == label).nonzero().flatten().tolist()
        for start in range(0, len(found) - len(members), len(members)):
            assert sorted(found[start : start + len(members)]) == members
    assert len(images) == 15

    def stays(values):
        return sum(a == b for a, b in pairwise(values)) / (len(values) - 1)

    assert abs(stays(owners) - 0.9) < 6 * math.sqrt(0.09 / 3000)
    assert abs(stays(labels) - 0.5) < 6 * math.sqrt(0.25 / 3000)
    assert numbers(stream) == numbers(batches)
    again = streams.markov(domains, 3000, 0.9, 0.5, batch_size=32, seed=5)
    assert numbers(again) != numbers(batches)
    assert "domain stays with 0.9" in stream.protocol


def test_a_markov_stream_is_as_long_as_its_domains_and_continual_at_correlation_one():
    domains = [domain("a", 40), domain("b", 20)]
    batches = list(streams.markov(domains, domain_correlation=1.0, class_correlation=0.2))
    owners = [name for batch in batches for name in batch.domains]
    assert len(owners) == 60
    assert Counter(owners) == {"a": 30, "b": 30}
    assert len(list(groupby(owners))) == 2
    assert set(owners) == {
        name for b in streams.markov([domains[0]], n=5, batch_size=2) for name in b.domains
    } | {"b"}


def test_a_domain_without_a_class_of_the_others_is_refused():
    few = Domain("few", torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 1]))
    with raises("missing_classes", BadInput, missing=(2, 3, 4)):
        list(streams.markov([domain("a", 40), few]))


# Dirichlet shares -------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.001, 0.01, 0.1, 1.0, 30.0])
def test_shares_have_the_moments_of_the_distribution(delta):
    n, times = 5, 20_000
    generator = torch.Generator().manual_seed(1)
    shares = torch.stack([_draw_shares(n, delta, generator) for _ in range(times)])
    assert torch.allclose(shares.sum(dim=1), torch.ones(times).double())
    mean, square = 1 / n, delta * (delta + 1) / (n * delta * (n * delta + 1))
    deviation = math.sqrt((square - mean**2) / times)
    assert (shares.mean(dim=0) - mean).abs().max() < 6 * deviation
    # A share is in [0, 1], so that its square has at most the variance of its mean square.
    assert (shares.square().mean(dim=0) - square).abs().max() < 6 * math.sqrt(square / times)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-30, 5e-324])
def test_of_tiny_concentrations_one_slot_takes_a_class_whole(delta):
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([_draw_shares(8, delta, generator) for _ in range(2000)])
    assert bool(drawn.isfinite().all())
    whole = drawn.amax(dim=1) > 0.999
    assert float(whole.float().mean()) > 0.9
    chosen = torch.bincount(drawn.argmax(dim=1), minlength=8)
    assert (chosen - 250).abs().max() < 6 * math.sqrt(250)
    stream = streams.dirichlet([domain("a", 200)], delta, 8)
    assert sorted(numbers(stream)) == list(range(200))


@pytest.mark.parametrize(
    ("make", "option", "found"),
    [
        (lambda d: streams.one_class(d, 0), "n_batches", 0),
        (lambda d: streams.one_class(d, n_classes=0), "n_classes", 0),
        (lambda d: streams.one_class(d, batch_size=0), "batch_size", 0),
        (lambda d: streams.markov(d, 0), "n", 0),
        (lambda d: streams.markov(d, domain_correlation=1.1), "domain_correlation", 1.1),
        (lambda d: streams.markov(d, class_correlation=-0.1), "class_correlation", -0.1),
        (lambda d: streams.markov(d, domain_ratio=0.5), "domain_ratio", 0.5),
        (lambda d: streams.markov(d, class_ratio=math.inf), "class_ratio", math.inf),
        (lambda d: streams.dirichlet(d, math.inf), "delta", math.inf),
    ],
)
def test_options_out_of_range(make, option, found):
    with raises("out_of_range", BadInput, option=option, found=found):
        make([domain("a", 4)])


def test_not_a_number_is_out_of_range():
    for name in ("domain_correlation", "class_correlation", "domain_ratio", "class_ratio"):
        with raises("out_of_range", BadInput, option=name):
            streams.markov([domain("a", 4)], **{name: math.nan})
    with raises("out_of_range", BadInput, option="delta"):
        streams.dirichlet([domain("a", 4)], math.nan)
