"""Streams made from other streams, and what an evaluation counts of them."""

from __future__ import annotations

import weakref

import pytest
import torch

import acclimate
from acclimate import streams
from acclimate.streams import Batch, Stream
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises
from tests.streams.domains import domain, tiny_domains


def test_episodes_and_passes():
    base = streams.reset_each([domain("a", 6), domain("b", 4)], 3)
    assert all(batch.reset for batch in streams.episodic(base))
    passes = list(streams.epochs(base, 2))
    assert [(b.domain, b.epoch, b.reset) for b in passes] == [
        ("a", 1, True),
        ("a", 1, False),
        ("a", 2, False),
        ("a", 2, False),
        ("b", 1, True),
        ("b", 1, False),
        ("b", 2, False),
        ("b", 2, False),
    ]


def held_stream(n_batches, every):
    """A stream that knows how many of its batches are alive, with a reset `every` so many."""
    alive = weakref.WeakSet()
    most = [0]

    class Input(torch.Tensor):
        pass

    def make():
        for number in range(n_batches):
            x = torch.full((2, 1, 1, 1), float(number)).as_subclass(Input)
            alive.add(x)
            most[0] = max(most[0], len(alive))
            batch = Batch(x, torch.zeros(2, dtype=torch.long), "a", reset=number % every == 0)
            del x
            yield batch

    return Stream("held", make), most


@pytest.mark.parametrize("times", [1, 2, 4])
def test_passes_hold_no_domain_in_memory(times):
    stream, most = held_stream(60, 20)
    found = []
    for batch in streams.epochs(stream, times):
        found.append((int(batch.x[0, 0, 0, 0]), batch.epoch, batch.reset))
    assert found == [
        (number, epoch, number % 20 == 0 and epoch == 1)
        for first in (0, 20, 40)
        for epoch in range(1, times + 1)
        for number in range(first, first + 20)
    ]
    assert most[0] <= times + 3  # one in each reading, and those in hand


def test_passes_over_a_stream_that_is_read_only_once():
    batches = list(streams.continual([domain("a", 12)], 3))
    with raises("wrong_type", option="stream", found="generator"):
        streams.epochs((batch for batch in batches), 2)
    once = iter(batches)
    with raises("not_repeatable"):
        list(streams.epochs(Stream("once", lambda: once), 2))
    with raises("count_mismatch", expected=3, found=1):
        list(streams.epochs(Stream("once", lambda: (batch for batch in once)), 2))
    assert len(list(streams.epochs(Stream("again", lambda: iter(batches)), 2))) == 8


def test_probes_come_after_each_domain_and_are_not_learned_from():
    base = streams.continual([domain("a", 4), domain("b", 4)], 2)
    batches = list(streams.with_clean_probe(base, domain("clean", 3), 2))
    assert [(b.domain, b.learns) for b in batches] == [
        *[("a", True)] * 2,
        *[("clean after a", False)] * 2,
        *[("b", True)] * 2,
        *[("clean after b", False)] * 2,
    ]


def test_a_window_counts_its_newest_sample_and_learns_when_it_is_new():
    stream = streams.sliding_window(streams.reset_each([domain("a", 7), domain("b", 3)], 4), 3)
    batches = list(stream)
    assert [len(b.x) for b in batches] == [1, 2, 3, 3, 3, 3, 3, 1, 2, 3]
    assert all(b.n_new == 1 for b in batches)
    assert [int(b.x[-1, 0, 0, 0]) for b in batches] == [*range(7), *range(3)]
    learns = [i for i, batch in enumerate(batches) if batch.learns]
    assert learns == [2, 5, 9]
    assert [b.reset for b in batches] == [True, *[False] * 6, True, False, False]


def test_a_window_keeps_the_domain_of_each_sample_and_lets_probes_pass():
    mixed = streams.mixed([domain("a", 5), domain("b", 4)], 4, seed=3)
    names = [name for batch in mixed for name in batch.domains]
    windows = list(streams.sliding_window(mixed, 3))
    assert [batch.domains[-1] for batch in windows] == names
    assert [batch.domains for batch in windows] == [
        tuple(names[max(0, end - 3) : end]) for end in range(1, 10)
    ]
    base = streams.continual([domain("a", 4)], 2)
    probed = list(streams.sliding_window(streams.with_clean_probe(base, domain("clean", 4), 3), 2))
    assert [(b.domain, len(b.x), b.n_new, b.learns) for b in probed] == [
        ("a", 1, 1, False),
        ("a", 2, 1, True),
        ("a", 2, 1, False),
        ("a", 2, 1, True),
        ("clean after a", 3, None, False),
        ("clean after a", 1, None, False),
    ]


def test_evaluation_of_mixtures_counts_each_domain():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "norm")
    stream = streams.mixed(tiny_domains(), 12)
    wrong = {"a": 0, "b": 0}
    for batch in stream:
        predicted = adapted(batch.x).argmax(1)
        for name, is_wrong in zip(batch.domains, predicted != batch.y, strict=True):
            wrong[name] += int(is_wrong)
    found = acclimate.evaluate(adapted, stream).error_by_domain
    assert found == {name: pytest.approx(count / 24) for name, count in wrong.items()}


def test_evaluation_of_probes_leaves_the_method_alone():
    base = streams.continual(tiny_domains(), 8)
    plain = acclimate.evaluate(acclimate.adapt(tiny_model("batch_norm"), "tent"), base)
    probed = acclimate.evaluate(
        acclimate.adapt(tiny_model("batch_norm"), "tent"),
        streams.with_clean_probe(base, tiny_domains()[0], 8),
    )
    learned = [r for r in probed.records if r.learned]
    assert [r.n_errors for r in learned] == [r.n_errors for r in plain.records]
    assert probed.error == plain.error
    assert "a after b" in probed.error_by_domain


def test_evaluation_by_pass_and_by_window():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent", lr=0.01)
    result = acclimate.evaluate(adapted, streams.epochs(streams.reset_each(tiny_domains(), 8), 2))
    assert result.of_epoch(1).n == result.of_epoch(2).n == 48
    window = acclimate.evaluate(
        acclimate.adapt(tiny_model("batch_norm"), "tent", statistics="source"),
        streams.sliding_window(streams.reset_each(tiny_domains(), 8), 4),
    )
    assert window.n == 48


def test_one_s_own_stream_is_any_iterable():
    x, y = tiny_batches(1)[0]
    adapted = acclimate.adapt(tiny_model("batch_norm"), "norm")
    assert acclimate.evaluate(adapted, [Batch(x, y, "mine")]).n == 8
    assert isinstance(streams.continual(tiny_domains(), 8), Stream)
