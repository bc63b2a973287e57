"""The benchmark of the penalties: its contenders agree, and its figures are what it says."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import penalty
import penalty_cases


@pytest.fixture
def tiny(monkeypatch):
    """A net of a few weights in the place of the real one."""

    def build(name):
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
        return nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.Tanh(), *head)

    monkeypatch.setattr(penalty_cases.zoo, "build", build)
    return argparse.Namespace(samples=12, loop_samples=6, repeats=4, threads=1)


def test_contenders_are_timed_in_turn_and_agree(tiny, capsys):
    found = penalty.measure_times("wrn-40-2", tiny)
    assert all(
        len(times) == tiny.repeats and min(times) > 0
        for clocks in found["seconds"].values()
        for times in clocks.values()
    )
    order = [line.split()[2] for line in capsys.readouterr().err.splitlines()]
    assert order[:6] == ["loop", "exact", "fast", "exact", "fast", "loop"]
    agreement = found["agreement"]
    assert agreement["exact_loop_float32"] < 1e-4
    assert agreement["exact_loop_float64"] < 1e-10
    assert agreement["fast_exact"] < 0.1
    assert agreement["fast_exact_rank_correlation"] > 0.7
    penalty.add_ratios(found)
    for who in ("exact", "fast"):
        for clock in ("wall", "cpu"):
            ratios = found["times_less_than_loop"][who][clock]
            pairs = zip(found["seconds"]["loop"][clock], found["seconds"][who][clock], strict=True)
            assert ratios == pytest.approx([loop / own for loop, own in pairs])
    found["extra_mb"] = dict.fromkeys(penalty.CONTENDERS, 1.0)
    penalty.show({"wrn-40-2": found}, tiny.samples)
    assert "rank correlation" in capsys.readouterr().out


def test_the_loop_is_extrapolated(tiny, monkeypatch):
    clock = iter(range(1000))
    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(penalty.time, name, lambda: next(clock))
    seconds = penalty.measure_times("wrn-40-2", tiny)["seconds"]
    # wall is read, cpu is read, the contender runs, wall is read, cpu is read.
    assert seconds["exact"]["wall"] == [2.0] * tiny.repeats
    assert seconds["loop"]["wall"] == [2.0 * 12 / 6] * tiny.repeats


def test_memory_grows_with_what_a_contender_holds(tiny, monkeypatch):
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process can be reset on Linux only")

    def hungry(model, *samples):
        block = torch.ones(10**6 * len(samples[0]))
        return {"sum": block.sum()}

    monkeypatch.setitem(penalty.CONTENDERS, "exact", hungry)
    found = penalty.measure_memory("wrn-40-2", tiny, "exact")["extra_mb"]
    assert found == pytest.approx(4 * tiny.samples, rel=0.3)


def test_rank_correlation():
    a = torch.tensor([0.1, 0.5, 0.2, 0.9])
    assert penalty.rank_correlation(a, a**3) == pytest.approx(1)
    assert penalty.rank_correlation(a, -a) == pytest.approx(-1)
    # Ranks 0 2 1 3 and 0 1 2 3: 1 − 6 · 2 / (4 · 15).
    assert penalty.rank_correlation(a, torch.tensor([1.0, 2, 3, 4])) == pytest.approx(0.8)
