"""The split of a domain, against DomainBed's rule restated from the generator up."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.data.domain_choice import seed_hash, split_keys
from tests.codes import raises
from tests.domains.samples import make_set


def shuffled(n: int, seed: int) -> list[int]:
    """Return 0 … n − 1 shuffled as NumPy's legacy generator does, out of its raw numbers.

    From the last place on, each is exchanged with a place up to itself. That place is drawn by
    masking 32 random bits, again while it is too large.
    """
    generator = np.random.MT19937()
    generator._legacy_seeding(seed)
    keys = list(range(n))
    for last in range(n - 1, 0, -1):
        mask = (1 << last.bit_length()) - 1
        place = int(generator.random_raw()) & mask
        while place > last:
            place = int(generator.random_raw()) & mask
        keys[last], keys[place] = keys[place], keys[last]
    return keys


def restated(n: int, trial: int, index: int) -> tuple[list[int], list[int]]:
    """Return what is trained on and what is held out."""
    digest = hashlib.md5(f"({trial}, {index})".encode()).digest()
    keys = shuffled(n, int.from_bytes(digest, "big") & 0x7FFFFFFF)
    cut = int(n * 0.2)
    return keys[cut:], keys[:cut]


@given(n=st.integers(5, 400), trial=st.integers(0, 9), index=st.integers(0, 9))
@settings(deadline=None, max_examples=40)
def test_the_split_is_domainbeds(n: int, trial: int, index: int) -> None:
    train, held = split_keys(n, trial, index)
    assert (train, held) == restated(n, trial, index)
    assert sorted(train + held) == list(range(n))
    assert len(held) == n // 5


def test_known_values() -> None:
    """Of PACS: the sizes are those of DomainBed's logs, the hash is that of its own function."""
    assert seed_hash(0, 1) == int(hashlib.md5(b"(0, 1)").hexdigest(), 16) % 2**31
    assert seed_hash(7) == int(hashlib.md5(b"(7,)").hexdigest(), 16) % 2**31
    assert seed_hash(2, "lr") == int(hashlib.md5(b"(2, 'lr')").hexdigest(), 16) % 2**31
    sizes = {n: [len(part) for part in split_keys(n, 0, 0)] for n in (2048, 2344, 1670, 3929)}
    assert sizes == {2048: [1639, 409], 2344: [1876, 468], 1670: [1336, 334], 3929: [3144, 785]}


def test_a_domain_is_split_by_its_place_and_its_trial() -> None:
    data = make_set(50)
    assert data.split("farm") == restated(50, 0, 1)
    assert data.split("FARM", trial_seed=3) == restated(50, 3, 1)
    parts = [data.split(name, trial)[1] for name in data.domains for trial in range(2)]
    assert len({tuple(part) for part in parts}) == 6


def test_too_few_images_are_refused() -> None:
    with raises("too_few_samples", expected=5, found=4):
        split_keys(4, 0, 0)
