"""Means, draws and derivatives over a batch that several processes share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from acclimate.functional import across
from acclimate.functional.across import (
    Processes,
    active,
    average,
    batch_logsumexp,
    batch_mean,
    batch_rand,
    batch_size,
    everywhere,
)
from acclimate.functional.entropy import entropy_of_mean, information_maximization
from acclimate.functional.norm import use_statistics
from acclimate.functional.rng import draw_uniforms
from tests.codes import raises
from tests.processes import run_on_processes

SIZES = (3, 2)


def parts(seed=0):
    """Two parts of a batch, of different sizes."""
    draws = torch.Generator().manual_seed(seed)
    whole = torch.randn(sum(SIZES), 4, generator=draws, dtype=torch.float64)
    return whole.split(SIZES)


def norm_layer(statistics):
    layer = nn.BatchNorm1d(4).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.5, 1.0, 2.0, -1.0]))
        layer.running_mean.copy_(torch.tensor([0.3, -0.2, 0.1, 0.0]))
        layer.running_var.copy_(torch.tensor([0.5, 1.0, 1.5, 2.0]))

    def run(x):
        with use_statistics(layer, statistics, momentum=0.4):
            return layer(x)

    return run


#: Each gives a process one number, of which all depend on the samples of all.
LOSSES = {
    "sum": lambda x, rank: (rank + 1) * (active().sum(x.sin().sum(0)) ** 2).sum() + x.cos().sum(),
    "gather": lambda x, rank: (rank + 1) * (active().gather(x.mean(0)).sin().prod(0)).sum(),
    "mean": lambda x, rank: (rank + 1) * (batch_mean(x.sin()) ** 3).sum(),
    "logsumexp": lambda x, rank: (rank + 1) * batch_logsumexp(x).sin().sum(),
    "entropy of the mean": lambda x, rank: (rank + 1) * entropy_of_mean(x),
    "batch": lambda x, rank: (rank + 1) * norm_layer("batch")(x).sin().sum(),
    "mixed": lambda x, rank: (rank + 1) * norm_layer("mixed")(x).sin().sum(),
}


def derivatives(rank, group=None):
    """Return derivatives of the sum of all processes' numbers: by autograd, and by differences."""
    processes = group.processes(rank) if group else Processes(None, rank, len(SIZES))
    x = parts()[rank]
    found = {}
    with processes.share(x, lambda x: x, {}) as x:
        for name, loss in LOSSES.items():
            variable = x.clone().requires_grad_()
            (analytic,) = torch.autograd.grad(loss(variable, rank), variable)
            numeric = torch.zeros_like(x)
            for holder, size in enumerate(SIZES):
                for place in range(size * x.shape[1]):
                    totals = []
                    for step in (1e-5, -1e-5):
                        moved = x.clone()
                        if rank == holder:
                            moved.view(-1)[place] += step
                        totals.append(active().sum(loss(moved, rank).detach()))
                    if rank == holder:
                        numeric.view(-1)[place] = (totals[0] - totals[1]) / 2e-5
            found[name] = analytic, numeric
        weight = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).requires_grad_()
        loss = information_maximization(x @ weight.T, 0.7, 0.9)
        (own,) = torch.autograd.grad(loss, weight)
        found["weight"] = average([own, None])[0], own
        half = average([torch.tensor([1.0, 3.0 + rank]).bfloat16(), own])
        found["half"] = half[0], half[1]
        found["flags"] = torch.tensor(
            [everywhere(torch.tensor(True)), everywhere(torch.tensor(rank == 0))]
        )
    return found


class Threads:
    """Threads in the place of processes: a sum over them waits for all."""

    def __init__(self):
        self.meeting = threading.Barrier(len(SIZES), timeout=30)
        self.given = [None] * len(SIZES)
        self.rank = threading.local()

    def processes(self, rank):
        self.rank.number = rank
        processes = Told(self, rank, len(SIZES))
        processes.sizes = SIZES
        return processes

    def all_reduce(self, x):
        self.given[self.rank.number] = x.detach().clone()
        self.meeting.wait()
        total = sum(self.given)
        self.meeting.wait()
        return total


@pytest.fixture(
    scope="module", params=["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def found(request, tmp_path_factory):
    if request.param == "processes":
        return run_on_processes(2, derivatives, tmp_path_factory.mktemp("across"))
    group = Threads()
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(SIZES)) as pool:
        patch.setattr(across, "_all_reduce", lambda x, group: group.all_reduce(x))
        return list(pool.map(derivatives, range(len(SIZES)), [group] * len(SIZES)))


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives_reach_the_samples_of_other_processes(found, name):
    for rank in range(2):
        analytic, numeric = found[rank][name]
        assert torch.allclose(analytic, numeric, rtol=1e-7, atol=1e-8)
        assert analytic.abs().max() > 1e-3


def test_averaged_gradients_are_those_of_one_loss(found):
    weight = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).requires_grad_()
    loss = information_maximization(torch.cat(parts()) @ weight.T, 0.7, 0.9)
    (expected,) = torch.autograd.grad(loss, weight)
    for rank in range(2):
        averaged, own = found[rank]["weight"]
        assert torch.allclose(averaged, expected, rtol=0, atol=1e-14)
        assert not torch.allclose(own, expected, rtol=0, atol=1e-3)


def test_gradients_of_several_types_are_averaged(found):
    for rank in range(2):
        half, double = found[rank]["half"]
        assert half.tolist() == [1.0, 3.5]
        assert half.dtype == torch.bfloat16
        assert torch.equal(double, found[rank]["weight"][0])


def test_a_condition_holds_if_it_holds_on_all(found):
    assert [f["flags"].tolist() for f in found] == [[True, False], [True, False]]


class Told(Processes):
    """Processes whose answers are known: the others hold so many samples of the same kind."""

    sizes: tuple[int, ...] = ()

    def exchange(self, facts):
        return [(facts[0], size, facts[2]) for size in self.sizes]


def held(rank, sizes):
    processes = Told(None, rank, len(sizes))
    processes.sizes = sizes
    return processes.share(torch.zeros(sizes[rank], 1), lambda x: x, {})


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 3))
def test_draws_depend_on_the_place_in_the_whole_batch(sizes, n_columns):
    whole = torch.Generator().manual_seed(5)
    expected = torch.rand(sum(sizes), n_columns, generator=whole, dtype=torch.float64)
    drawn = []
    for rank, size in enumerate(sizes):
        generator = torch.Generator().manual_seed(5)
        with held(rank, tuple(sizes)) as x:
            drawn.append(draw_uniforms(size, n_columns, generator))
            assert batch_size(x) == sum(sizes)
        assert torch.equal(generator.get_state(), whole.get_state())
    assert torch.equal(torch.cat(drawn), expected)


def test_alone_everything_is_plain():
    x = parts()[0]
    assert active() is None
    assert batch_size(x) == 3
    assert torch.equal(batch_mean(x), x.mean(0))
    assert torch.equal(batch_logsumexp(x), torch.logsumexp(x, 0))
    assert average([x, None])[0] is x
    assert everywhere(torch.tensor(True))
    assert not everywhere(torch.tensor(False))
    draws = [torch.Generator().manual_seed(1) for _ in range(2)]
    expected = torch.rand(4, 2, generator=draws[1], dtype=torch.float64)
    assert torch.equal(batch_rand(4, 2, draws[0]), expected)


@pytest.mark.parametrize("function", [batch_mean, batch_size, batch_logsumexp, entropy_of_mean])
def test_rows_of_something_else_than_the_batch_are_refused(function):
    with raises("shards_unsupported"), held(0, (3, 4)):
        function(torch.zeros(2, 4))


def test_what_failed_half_way_is_not_gone_on_with():
    processes = Told(None, 0, 2)
    processes.sizes = (1, 1)
    x = torch.zeros(1, 1)
    with pytest.raises(KeyboardInterrupt), processes.share(x, lambda x: x, {}):
        raise KeyboardInterrupt
    assert active() is None
    with raises("out_of_step"), processes.share(x, lambda x: x, {}):
        pass
