"""Claims hold, do not hold, or cannot be told, as the numbers say."""

from __future__ import annotations

import itertools
import random
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.paper import EXPERIMENTS, load_published
from acclimate.paper.claims import (
    RESAMPLES,
    Cell,
    Claim,
    Grid,
    align,
    decide,
    judge,
)
from acclimate.report.stats import resample

A, B, C, D = (("a", ""), ("b", ""), ("c", ""), ("d", ""))
A_BELOW_B = Claim("a is better", "below", ((A,), (B,)))
DOMAINS = ("noise", "blur", "fog", "snow", "frost", "jpeg")

#: Claims that are not true of the paper's own numbers, in some settings.
NOT_IN_PAPER = {
    ("table-s2", "CIFAR-10-C, WRN-40-2", "the default is best of all"),
    ("table-s2", "CIFAR-10-C, ResNet-50", "the default is better than colour alone"),
    ("table-s2", "CIFAR-10-C, ResNet-50", "too many transforms raise the error"),
    ("table-s2", "CIFAR-10-C, ResNet-50", "the default is best of all"),
    (
        "table-s4",
        "CIFAR-10-C, WRN-28-10",
        "prototypes from samples are better than the classifier's",
    ),
    ("table-s6b", "ImageNet-C, ResNet-50", "ours has a lower error than TENT at severity 2"),
    ("table-s6b", "ImageNet-C, ResNet-50", "ours has a lower error than TENT at severity 1"),
}


def make_grid(means: dict[Cell, float], apart: float = 0.5, n_seeds: int = 2) -> Grid:
    """Cells whose errors differ by domain, all alike, and by a little of their own."""
    draws = random.Random(0)
    common = {(s, d): draws.gauss(0, 10) for s in range(n_seeds) for d in DOMAINS}
    cells = {
        cell: {
            seed: {d: mean + common[seed, d] + draws.gauss(0, apart) for d in DOMAINS}
            for seed in range(n_seeds)
        }
        for cell, mean in means.items()
    }
    return Grid("here", "CIFAR-10-C, WRN-40-2", cells)


def test_holds_though_domains_differ_more_than_methods() -> None:
    verdict = judge(A_BELOW_B, make_grid({A: 30, B: 33}))
    assert (verdict.verdict, verdict.n_seeds, verdict.n_domains) == ("holds", 2, 6)
    assert verdict.confidence is not None
    assert verdict.confidence > 0.99
    assert verdict.margin == pytest.approx(3, abs=0.5)
    assert verdict.reason == ""


def test_does_not_hold_and_says_so() -> None:
    verdict = judge(A_BELOW_B, make_grid({A: 33, B: 30}))
    assert verdict.verdict == "does not hold"
    assert verdict.margin == pytest.approx(-3, abs=0.5)
    assert verdict.confidence is not None
    assert verdict.confidence > 0.99


def test_cannot_be_told_where_it_depends_on_the_draw() -> None:
    verdict = judge(A_BELOW_B, make_grid({A: 30, B: 30}, apart=5))
    assert verdict.verdict == "cannot be told"
    assert "changes with what is drawn" in verdict.reason


def test_few_pairs_show_nothing() -> None:
    grid = make_grid({A: 30, B: 90}, n_seeds=1)
    few = {cell: {0: dict(list(own[0].items())[:2])} for cell, own in grid.cells.items()}
    verdict = judge(A_BELOW_B, Grid("here", "", few))
    assert verdict.verdict == "cannot be told"
    assert verdict.confidence == 0.75
    assert "2 pairs" in verdict.reason


def test_equal_errors_show_nothing() -> None:
    grid = make_grid({A: 30, B: 30}, apart=0)
    verdict = judge(A_BELOW_B, grid)
    assert (verdict.verdict, verdict.confidence, verdict.margin) == ("cannot be told", 0.0, 0.0)
    assert "no difference" in verdict.reason


def test_missing_cells_are_named() -> None:
    verdict = judge(Claim("", "below", ((A,), (("TTT++", "mean"),))), make_grid({A: 30}))
    assert verdict.verdict == "cannot be told"
    assert verdict.reason == "not there: TTT++ mean"
    assert (verdict.margin, verdict.confidence) == (None, None)
    grid = Grid("here", "", {A: {0: {"fog": 1.0}}, B: {1: {"fog": 1.0}}})
    assert "in common" in judge(A_BELOW_B, grid).reason


def test_every_kind_of_claim() -> None:
    grid = make_grid({A: 30, B: 33, C: 36, D: 30.2}, apart=0.05)

    def make(kind: str, first: list[Cell], second: list[Cell], **more: Any) -> Claim:
        return Claim("", kind, (tuple(first), tuple(second)), **more)

    def found(*about: Any, **more: Any) -> str:
        return judge(make(*about, **more), grid).verdict

    assert found("lowest", [A], [B, C]) == "holds"
    assert found("lowest", [B], [A, C]) == "does not hold"
    assert found("best_below", [A, C], [B]) == "holds"
    assert found("best_below", [B, C], [A, B]) == "does not hold"
    nowhere = ("TENT", "1e-9")
    assert found("best_below", [nowhere, A], [B, nowhere]) == "holds"
    assert judge(make("best_below", [A], [nowhere]), grid).reason == "not there: TENT 1e-9"
    assert found("larger_gain", [C, A], [C, B]) == "holds"
    assert found("larger_gain", [C, B], [C, A]) == "does not hold"
    assert found("near", [A, D], [], margin=0.5) == "holds"
    assert found("near", [A, B, D], [], margin=0.5) == "does not hold"


def test_the_bootstrap_is_that_of_a_loop() -> None:
    """The same draws made one by one, and a distribution that is known exactly."""
    errors = np.array([[1.0, 4.0], [2.0, 9.0]])
    draws = resample(errors[None], 40_000, seed=3)[:, 0]
    exact = [
        statistics.fmean(errors[s, d] for s in seeds for d in domains)
        for seeds in itertools.product(range(2), repeat=2)
        for domains in itertools.product(range(2), repeat=2)
    ]
    for value in sorted(set(exact)):
        share = float(np.mean(np.isclose(draws, value)))
        assert share == pytest.approx(exact.count(value) / len(exact), abs=0.01)


def test_cells_are_drawn_together() -> None:
    one = np.arange(12.0).reshape(3, 4)
    first, second = resample(np.stack([one, one + 5]), 500, seed=0).T
    np.testing.assert_allclose(second - first, 5)
    np.testing.assert_array_equal(first, resample(one[None], 500, seed=0)[:, 0])


def test_only_what_all_cells_have_is_paired() -> None:
    first = {0: {"fog": 1.0, "snow": 2.0}, 1: {"fog": 3.0, "snow": 4.0}}
    second = {1: {"snow": 5.0, "fog": 6.0, "frost": 7.0}}
    a, b = align([first, second])
    np.testing.assert_array_equal(a, [[3.0, 4.0]])
    np.testing.assert_array_equal(b, [[6.0, 5.0]])


def test_nothing_is_counted_twice() -> None:
    """Seeds that change nothing are one, and severities of a corruption are one pair."""
    same = {"fog": 1.0, "snow": 2.0}
    first, second = {0: same, 1: same, 2: {"fog": 1.5, "snow": 2.0}}, {0: same, 1: same, 2: same}
    a, b = align([first, second])
    np.testing.assert_array_equal(a, [[1.0, 2.0], [1.5, 2.0]])
    np.testing.assert_array_equal(b, [[1.0, 2.0], [1.0, 2.0]])
    verdict = judge(A_BELOW_B, Grid("", "", {A: {0: same, 1: same}, B: {0: same, 1: same}}))
    assert (verdict.n_seeds, verdict.n_domains) == (1, 2)
    levels = {0: {"fog, severity 1": 1.0, "fog, severity 5": 3.0, "snow, severity 1": 4.0}}
    (found,) = align([levels])
    np.testing.assert_array_equal(found, [[2.0, 4.0]])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-5, 5), min_size=5, max_size=60), st.integers(1, 40))
def test_verdicts_are_fair(values: list[float], n_pairs: int) -> None:
    """What holds for numbers does not hold for their negatives; confidence has its bound."""
    verdict, confidence, reason = decide(np.array(values), n_pairs)
    opposite, same, _ = decide(-np.array(values), n_pairs)
    flipped = {"holds": "does not hold", "does not hold": "holds"}
    assert opposite == flipped.get(verdict, verdict)
    assert confidence == same <= 1 - 0.5**n_pairs
    assert bool(reason) == (verdict == "cannot be told")


def test_the_same_run_gives_the_same_verdict() -> None:
    grid = make_grid({A: 30, B: 30.5}, apart=1)
    first, second = (judge(A_BELOW_B, grid) for _ in range(2))
    assert first == second
    assert first.to_dict()["resamples"] == RESAMPLES == 10_000


@pytest.mark.parametrize("name", [name for name, own in EXPERIMENTS.items() if own.claims])
def test_claims_agree_with_the_papers_own_numbers(name: str) -> None:
    """All but those that are listed, which its text draws from most of its settings."""
    experiment = EXPERIMENTS[name]
    published = load_published()[name]
    for setting in published.rows:
        numbers = published.errors(setting)
        for claim in experiment.claims:
            if not setting.startswith(claim.where):
                continue
            told = judge(claim, Grid("", setting, {}), numbers).published
            if told is not None:
                assert told == ((name, setting, claim.text) not in NOT_IN_PAPER), claim.text


def test_claims_are_about_cells_that_jobs_fill() -> None:
    for name, experiment in EXPERIMENTS.items():
        if experiment.plan is not None or name.startswith("table-s6"):
            continue
        entries = experiment.suite("full", (0,)).entries
        rows = {str(e.axes["row"]) for e in entries} | {"TTT++"}
        columns = {str(e.axes["column"]) for e in entries} | {"mean", "1", "2", "3"}
        for claim in experiment.claims:
            assert {row for row, _ in claim.cells} <= rows, name
            assert {column for _, column in claim.cells} <= columns, name
