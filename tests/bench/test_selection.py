"""Rules that choose hyper-parameters, and what they are not allowed to see."""

from __future__ import annotations

import dataclasses

import pytest

from acclimate.bench import RULES, Entry, JobSpec, Outcome, get_rule
from acclimate.bench.selection import HELD_OUT
from acclimate.errors import BadInput
from acclimate.evaluation import Record, Result
from tests.codes import raises

CANDIDATES = tuple(
    Entry(JobSpec(method="tent", data="cifar10c", options={"lr": lr} if lr else {}), f"lr {lr}")
    for lr in (0.1, None, 0.01)
)


def measured(entry: Entry, n_errors: int) -> Outcome:
    record = Record("x", 0, 100, n_errors, 0.5, 0.5, 1.0, 0, 0, None, {"x": (100, n_errors)})
    return Outcome(entry, Result((record,)), {})


def test_every_rule_says_what_it_does() -> None:
    assert list(RULES) == [
        *("paper", "held-out", "training-domain"),
        *("leave-one-domain-out", "oracle"),
    ]
    assert all(rule.sentence for rule in RULES.values())
    assert [rule.name for rule in RULES.values() if rule.is_oracle] == ["oracle"]
    assert "upper bound" in RULES["oracle"].sentence
    with raises("unknown_name", BadInput, kind="selection rule", name="oracel", known=tuple(RULES)):
        get_rule("oracel")


def test_the_paper_rule_takes_published_values_and_looks_at_nothing() -> None:
    rule = get_rule("paper")
    assert rule.make_trials(CANDIDATES) == []
    assert rule.choose(CANDIDATES) is CANDIDATES[1]
    with raises("not_applicable", BadInput, option="outcomes"):
        rule.choose(CANDIDATES, [measured(CANDIDATES[0], 1)])
    with raises("no_default_candidate", BadInput, rule="paper"):
        rule.choose(CANDIDATES[:1])
    with raises("missing_option", BadInput, option="candidates"):
        rule.choose(())


def test_held_out_corruptions_decide_over_all_seeds() -> None:
    rule = get_rule("held-out")
    trials = rule.make_trials(CANDIDATES, seeds=(0, 1))
    assert len(trials) == 6
    assert all(trial.spec.corruptions == HELD_OUT for trial in trials)
    # The second is best with seed 0, the third over both.
    errors = [40, 40, 10, 40, 20, 20]
    outcomes = [measured(*pair) for pair in zip(trials, errors, strict=True)]
    assert rule.choose(CANDIDATES, outcomes) is CANDIDATES[2]
    assert rule.choose(CANDIDATES, outcomes[::-1]) is CANDIDATES[2]
    equal = [measured(trial, 20) for trial in trials]
    assert rule.choose(CANDIDATES, equal) is CANDIDATES[0]
    with raises("untried_candidate", BadInput, name="lr 0.01"):
        rule.choose(CANDIDATES, outcomes[:4])


@pytest.mark.parametrize("name", ["held-out", "training-domain"])
def test_outcomes_of_the_test_are_refused(name: str) -> None:
    rule = get_rule(name)
    outcomes = [measured(trial, 30) for trial in rule.make_trials(CANDIDATES)]
    assert rule.choose(CANDIDATES, outcomes) is CANDIDATES[0]
    for entry in CANDIDATES:
        with raises("selection_leak", BadInput, rule=name):
            rule.choose(CANDIDATES, [*outcomes, measured(entry, 1)])
    # Nor is one that was tried on something between the two.
    part = dataclasses.replace(CANDIDATES[0].spec, corruptions=(*HELD_OUT, "fog"))
    with raises("selection_leak", BadInput, rule=name):
        rule.choose(CANDIDATES, [*outcomes, measured(Entry(part, "x"), 1)])


def test_what_is_tested_on_held_out_corruptions_cannot_be_chosen_by_them() -> None:
    spec = JobSpec(method="tent", data="cifar10c", corruptions=("fog", "spatter"))
    with raises("selection_leak", BadInput, rule="held-out"):
        get_rule("held-out").make_trials([Entry(spec, "x")])


def test_the_training_domain_is_the_clean_set() -> None:
    rule = get_rule("training-domain")
    (trial,) = rule.make_trials(CANDIDATES[:1])
    assert (trial.spec.data, trial.spec.corruptions) == ("cifar10", None)
    shifted = JobSpec(method="tent", corruptions=("fog",))
    (trial,) = rule.make_trials([Entry(shifted, "x")])
    assert (trial.spec.data, trial.spec.corruptions) == ("builtin", None)
    with raises("selection_leak", BadInput, rule="training-domain"):
        rule.make_trials([Entry(JobSpec(method="tent"), "x")])
    with raises("no_clean_images", BadInput, name="somewhere"):
        rule.make_trials([Entry(JobSpec(method="tent", data="somewhere"), "x")])


def test_the_oracle_alone_sees_the_test() -> None:
    rule = get_rule("oracle")
    assert rule.make_trials(CANDIDATES) == list(CANDIDATES)
    outcomes = [measured(entry, n) for entry, n in zip(CANDIDATES, (3, 2, 1), strict=True)]
    assert rule.choose(CANDIDATES, outcomes) is CANDIDATES[2]
