"""The benchmark of the penalties on a tiny net: what it measures, in which order, and its ratios.

How near `fast` comes to `exact` is tested where the speeds are, on a net that makes it meaningful.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.paths import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import penalty
import penalty_cases

ARGUMENTS = argparse.Namespace(samples=12, loop_samples=6, repeats=3, threads=1)


@pytest.fixture(scope="module", autouse=True)
def tiny() -> Iterator[None]:
    """A net of a few weights in the place of the real one, and no tidying up of all tests."""

    def build(name: str) -> nn.Module:
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
        return nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.Tanh(), *head)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(penalty_cases.zoo, "build", build)
        patch.setattr(penalty, "gc", SimpleNamespace(collect=lambda: None))
        yield


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What is measured with a clock that shows 0, 1, 4, 9 and so on, one after another."""
    readings = (float(n * n) for n in itertools.count())
    clock = SimpleNamespace(
        perf_counter=lambda: next(readings), process_time=lambda: next(readings)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(penalty, "time", clock)
        measured = penalty.measure_times("wrn-40-2", ARGUMENTS)
    penalty.add_ratios(measured)
    return measured


def test_contenders_are_timed_in_turn_and_the_loop_is_extrapolated(found: dict[str, Any]) -> None:
    order = ["loop", "exact", "fast", "exact", "fast", "loop", "fast", "loop", "exact"]
    expected: dict[str, Any] = {who: {"wall": [], "cpu": []} for who in penalty.CONTENDERS}
    for place, who in enumerate(order):
        # Wall is read, CPU is read, the contender runs, wall is read, CPU is read.
        wall, cpu, wall_after, cpu_after = ((4 * place + n) ** 2 for n in range(4))
        factor = 12 / 6 if who == "loop" else 1
        expected[who]["wall"].append(factor * (wall_after - wall))
        expected[who]["cpu"].append(factor * (cpu_after - cpu))
    assert found["seconds"] == expected


def test_the_loop_and_the_library_agree(found: dict[str, Any]) -> None:
    agreement = found["agreement"]
    assert agreement.keys() == {
        *("exact_loop_float32", "exact_loop_float64"),
        *("fast_exact", "fast_exact_rank_correlation"),
    }
    assert all(math.isfinite(value) for value in agreement.values())
    assert agreement["exact_loop_float64"] < 1e-10  # where rounding is no excuse


def test_ratios_are_taken_by_round(found: dict[str, Any], capsys) -> None:
    seconds = found["seconds"]
    for who, clock in itertools.product(("exact", "fast"), ("wall", "cpu")):
        pairs = zip(seconds["loop"][clock], seconds[who][clock], strict=True)
        ratios = found["times_less_than_loop"][who][clock]
        assert ratios == pytest.approx([loop / own for loop, own in pairs])
    memory = dict.fromkeys(penalty.CONTENDERS, 1.0)
    penalty.show({"wrn-40-2": {**found, "extra_mb": memory}}, ARGUMENTS.samples)
    assert "rank correlation" in capsys.readouterr().out


def test_memory_grows_with_what_a_contender_holds(monkeypatch) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process can be reset on Linux only")

    def hungry(model, *samples):
        block = torch.ones(10**6 * len(samples[0]))
        return {"sum": block.sum()}

    monkeypatch.setitem(penalty.CONTENDERS, "exact", hungry)
    measured = penalty.measure_memory("wrn-40-2", ARGUMENTS, "exact")["extra_mb"]
    assert measured == pytest.approx(4 * ARGUMENTS.samples, rel=0.3)


def test_rank_correlation() -> None:
    a = torch.tensor([0.1, 0.5, 0.2, 0.9])
    assert penalty.rank_correlation(a, a**3) == pytest.approx(1)
    assert penalty.rank_correlation(a, -a) == pytest.approx(-1)
    # Ranks 0 2 1 3 and 0 1 2 3: 1 − 6 · 2 / (4 · 15).
    assert penalty.rank_correlation(a, torch.tensor([1.0, 2, 3, 4])) == pytest.approx(0.8)
