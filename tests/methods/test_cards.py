"""Cards of methods: they are the only place of the facts, and complete the docstrings."""

from __future__ import annotations

import inspect

import pytest

from acclimate.methods import METHODS
from acclimate.methods.config import MethodCard
from acclimate.methods.tent import Tent


@pytest.mark.parametrize("name", METHODS)
def test_the_docstring_ends_with_the_facts_of_the_card(name: str) -> None:
    kind = METHODS[name]
    text, card = inspect.getdoc(kind) or "", kind.card
    facts = (card.authors, card.paper, card.code, f"Moves {card.moves}.", card.reconstruction)
    assert text.endswith(card.describe())
    assert all(text.count(fact) == 1 for fact in facts if fact and fact != card.authors)
    assert f"Paper: {card.authors} {card.year}" in text or not card.paper
    assert f"Returns logits from {card.predicts} the update." in text
    assert f"Cost of a batch: {card.cost}." in text


def test_a_variant_takes_over_what_moves_and_the_cost_alone() -> None:
    made = Tent.card.variant(authors="A. Uthor", year=2024, forwards=2)
    assert made == MethodCard(
        authors="A. Uthor", year=2024, moves=Tent.card.moves, forwards=2, backwards=1
    )


def test_a_method_without_a_docstring_stays_without() -> None:
    class Bare(Tent):
        name = "bare"

    assert Bare.__doc__ is None
    assert not Bare.card.shards
