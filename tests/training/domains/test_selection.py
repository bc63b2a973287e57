"""Choosing without the test domain: hand-worked examples, and what must not be looked at."""

from __future__ import annotations

import pytest

from acclimate.bench import RULES
from acclimate.training.domains.selection import (
    DOMAIN_RULES,
    DomainRule,
    Validation,
    choose,
    get_domain_rule,
)
from tests.codes import raises

SOURCES = ("art", "cartoon", "photo")

# Accuracies of three candidates, worked out by hand. On the part held out of the training domains
# the first is best (mean 95 against 94 and 90), on domains left out the second (60, 71, 70), on the
# test domain the third.
HELD = [
    {"art": 95.0, "cartoon": 95.0, "photo": 95.0},
    {"art": 99.0, "cartoon": 93.0, "photo": 90.0},
    {"art": 90.0, "cartoon": 90.0, "photo": 90.0},
]
LEFT_OUT = [
    {"art": 90.0, "cartoon": 50.0, "photo": 40.0},
    {"art": 70.0, "cartoon": 72.0, "photo": 71.0},
    {"art": 75.0, "cartoon": 70.0, "photo": 65.0},
]
TEST = [50.0, 55.0, 80.0]


def on_training_domains() -> list[dict[Validation, float]]:
    return [{Validation(("sketch",), name, "held"): v for name, v in own.items()} for own in HELD]


def on_left_out() -> list[dict[Validation, float]]:
    pairs = {"art": ("art", "sketch"), "cartoon": ("cartoon", "sketch")}
    pairs["photo"] = ("photo", "sketch")
    return [
        {Validation(pairs[name], name): value for name, value in own.items()} for own in LEFT_OUT
    ]


def on_test() -> list[dict[Validation, float]]:
    return [{Validation(("sketch",), "sketch"): value} for value in TEST]


def test_each_rule_chooses_by_hand() -> None:
    leave_out, at_home = DOMAIN_RULES["leave-one-domain-out"], DOMAIN_RULES["training-domain"]
    assert choose(at_home, "sketch", SOURCES, on_training_domains()) == 0
    assert choose(leave_out, "sketch", SOURCES, on_left_out()) == 1
    assert choose(DOMAIN_RULES["oracle"], "sketch", SOURCES, on_test()) == 2
    assert choose(leave_out, "sketch", SOURCES, on_left_out()[::-1]) == 1
    # Of equals, the first.
    assert choose(leave_out, "sketch", SOURCES, [on_left_out()[2], on_left_out()[2]]) == 0


def test_models_of_two_domains_left_out_serve_both() -> None:
    rule = DOMAIN_RULES["leave-one-domain-out"]
    domains = ("art", "cartoon", "photo", "sketch")
    validations = [
        validation
        for test in domains
        for validation in rule.list_validations(test, [name for name in domains if name != test])
    ]
    assert len(validations) == len(set(validations)) == 12
    assert len({validation.without for validation in validations}) == 6
    assert all(
        validation.domain in validation.without and validation.part == "all"
        for validation in validations
    )
    assert Validation(("art", "sketch"), "art") in validations
    assert Validation(("art", "sketch"), "sketch") in validations


def test_only_the_oracle_is_marked_and_all_rules_have_a_sentence() -> None:
    assert [name for name, rule in DOMAIN_RULES.items() if rule.is_oracle] == ["oracle"]
    for name in DOMAIN_RULES:
        assert RULES[name].sentence
        assert RULES[name].is_oracle == DOMAIN_RULES[name].is_oracle
    known = tuple(DOMAIN_RULES)
    with raises("unknown_name", kind="selection rule", name="leave-one-out", known=known):
        get_domain_rule("leave-one-out")


@pytest.mark.parametrize(
    ("validation", "code", "about"),
    [
        (Validation(("sketch",), "sketch"), "selection_leak", {}),
        (Validation(("sketch",), "sketch", "held"), "selection_leak", {}),
        (Validation(("art", "sketch"), "sketch"), "selection_leak", {}),
        (Validation(("art",), "art"), "trained_on_test", {"domain": "sketch"}),
        (Validation(("sketch",), "art"), "trained_on_images", {"domain": "art"}),
    ],
)
def test_a_rule_that_peeks_is_refused(
    validation: Validation, code: str, about: dict[str, str]
) -> None:
    peeking = DomainRule("clever", lambda test, sources: [validation])
    with raises(code, rule="clever", **about):
        peeking.list_validations("sketch", SOURCES)
    with raises(code, rule="clever", **about):
        choose(peeking, "sketch", SOURCES, [{validation: 99.0}, {validation: 1.0}])


def test_accuracies_on_the_test_domain_cannot_be_handed_over() -> None:
    """Whoever gives a rule more than it may look at is refused, whatever the numbers are."""
    for rule, honest in (
        (DOMAIN_RULES["leave-one-domain-out"], on_left_out()),
        (DOMAIN_RULES["training-domain"], on_training_domains()),
    ):
        leaked = [{**own, **more} for own, more in zip(honest, on_test(), strict=True)]
        with raises("selection_leak", rule=rule.name):
            choose(rule, "sketch", SOURCES, leaked)
        with raises("selection_leak", rule=rule.name):
            choose(rule, "sketch", SOURCES, on_test())


def test_what_is_missing_is_named() -> None:
    rule = DOMAIN_RULES["leave-one-domain-out"]
    with raises("missing_option", option="accuracies"):
        choose(rule, "sketch", SOURCES, [])
    table = on_left_out()
    del table[1][Validation(("photo", "sketch"), "photo")]
    with raises("untried_candidate", name="1"):
        choose(rule, "sketch", SOURCES, table)
    with raises("not_applicable", option="rule"):
        choose(DomainRule("idle", lambda test, sources: []), "sketch", SOURCES, [{}])
