"""CORAL's penalty and DomainBed's hyper-parameters, against programs of their own."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.training.domains.task import coral_penalty
from acclimate.training.settings import Hyperparameters, draw_hparams, get_hparams
from tests.codes import raises


def oracle(features: list[np.ndarray]) -> float:
    """Return the penalty by loops over pairs of domains and pairs of features."""
    total, n_pairs = 0.0, 0
    for a, b in itertools.combinations(features, 2):
        n_pairs += 1
        width = a.shape[1]
        for i in range(width):
            total += (sum(a[:, i]) / len(a) - sum(b[:, i]) / len(b)) ** 2 / width
        covariances = [np.cov(own, rowvar=False).reshape(width, width) for own in (a, b)]
        for i in range(width):
            for j in range(width):
                total += (covariances[0][i, j] - covariances[1][i, j]) ** 2 / width**2
    return total / n_pairs


@given(
    sizes=st.lists(st.integers(2, 6), min_size=2, max_size=4),
    width=st.integers(1, 5),
    seed=st.integers(0, 2**31 - 1),
)
@settings(deadline=None, max_examples=25)
def test_the_penalty_is_that_of_the_oracle(sizes: list[int], width: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    features = [draws.normal(draws.normal(), 2, (n, width)) for n in sizes]
    found = coral_penalty([torch.from_numpy(own) for own in features])
    assert float(found) == pytest.approx(oracle(features), rel=1e-9)
    # It neither depends on the order of the domains nor on where all of them lie.
    other = coral_penalty([torch.from_numpy(own + 3) for own in reversed(features)])
    assert float(other) == pytest.approx(float(found), rel=1e-7)


def test_a_case_by_hand() -> None:
    # Means 1 and 3, variances 2 and 8 (divided by n − 1): (2² ) + (6²).
    one, two = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])
    assert float(coral_penalty([one, two])) == 4 + 36
    # A third domain like the first: three pairs, of which one is equal.
    assert float(coral_penalty([one, two, one])) == pytest.approx(2 * 40 / 3)


def test_the_gradient_is_that_of_finite_differences() -> None:
    draws = torch.Generator().manual_seed(0)
    features = [
        torch.randn(n, 3, dtype=torch.float64, generator=draws).requires_grad_() for n in (3, 4, 2)
    ]
    assert torch.autograd.gradcheck(lambda *own: coral_penalty(own), features)


def test_equal_domains_have_no_penalty_and_too_few_are_refused() -> None:
    x = torch.randn(5, 4)
    assert float(coral_penalty([x, x])) == 0
    assert coral_penalty([x.bfloat16(), (2 * x).bfloat16()]).dtype == torch.float32
    with raises("too_few_domains", expected=2, found=1):
        coral_penalty([x])
    with raises("too_few_samples", expected=2, found=1):
        coral_penalty([x, x[:1]])


def seeded(*values: object) -> np.random.RandomState:
    """Return DomainBed's generator for these values, restated."""
    digest = hashlib.md5(repr(tuple(values)).encode()).digest()
    return np.random.RandomState(int.from_bytes(digest, "big") & 0x7FFFFFFF)


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_draws_are_those_of_domainbed(seed: int) -> None:
    found = draw_hparams(seed)
    assert found.lr == 10 ** seeded(seed, "lr").uniform(-5, -3.5)
    assert found.batch_size == int(2 ** seeded(seed, "batch_size").uniform(3, 5.5))
    assert found.weight_decay == 10 ** seeded(seed, "weight_decay").uniform(-6, -2)
    assert found.dropout == seeded(seed, "resnet_dropout").choice([0.0, 0.1, 0.5])
    assert found.gamma == 10 ** seeded(seed, "mmd_gamma").uniform(-1, 1)


def test_defaults_and_trials() -> None:
    assert get_hparams(0, 5) == Hyperparameters(5e-5, 32, 0.0, 0.0, 1.0)
    digest = hashlib.md5(b"(3, 1)").hexdigest()
    assert get_hparams(3, 1) == draw_hparams(int(digest, 16) % 2**31)
    drawn = [get_hparams(draw, trial) for draw in range(1, 6) for trial in range(3)]
    assert len(set(drawn)) == 15
    assert all(8 <= own.batch_size <= 45 and 1e-5 <= own.lr <= 10**-3.5 for own in drawn)
    with raises("out_of_range", option="hparams_seed", found=-1):
        get_hparams(-1, 0)
