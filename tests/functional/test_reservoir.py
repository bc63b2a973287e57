"""Memories that are balanced over classes."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.functional.reservoir import BalancedMemory, choose_slot
from tests.reference import oracles_teachers as oracles


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 9),
    st.integers(2, 5),
    st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1)), max_size=60),
)
def test_the_memory_is_that_of_the_lists(capacity, n_classes, samples):
    memory, lists = BalancedMemory(capacity, n_classes), oracles.ListMemory(capacity, n_classes)
    for number, (label, uncertainty) in enumerate(samples):
        image = torch.full((1, 2, 2), float(number))
        for one in (memory, lists):
            one.add(image, label % n_classes, uncertainty)
        kept = BalancedMemory.read_tree(memory.to_tree())  # as if saved in between
        memory = BalancedMemory(capacity, n_classes, items=kept)
        assert len(kept) <= capacity
    found = [(int(i.image[0, 0, 0]), i.uncertainty, i.age) for i in memory.ordered()]
    assert found == [(int(i[0][0, 0, 0]), i[1], i[2]) for i in lists.items()]


def test_a_balanced_memory_is_balanced():
    """Of a stream with nine in ten of one class, the memory keeps the classes alike."""
    draws = torch.Generator().manual_seed(0)
    kept, seen = [], {}
    for i in range(1000):
        label = 0 if i % 10 else 1 + (i // 10) % 3
        seen[label] = seen.get(label, 0) + 1
        slot = choose_slot(kept, label, seen[label], 16, draws)
        if slot is not None:
            kept[slot : slot + 1] = [label]
        assert len(kept) <= 16
    assert sorted(kept) == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_samples_of_a_class_have_equal_chances():
    """Reservoir sampling: of 40 samples through 8 places, each stays with probability 1/5."""
    draws = torch.Generator().manual_seed(1)
    counts = torch.zeros(40)
    for _ in range(500):
        places = []
        for i in range(40):
            slot = choose_slot([0] * len(places), 0, i + 1, 8, draws)
            if slot is not None:
                places[slot : slot + 1] = [i]
        counts[places] += 1
    # 100 expected of each, with a standard deviation of 9.
    assert counts.sum() == 4000
    assert counts.min() > 60
    assert counts.max() < 140
