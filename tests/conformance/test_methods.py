"""Every registered method, on every tiny model, against the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest

import acclimate
from acclimate.methods import METHODS
from acclimate.snapshot import flatten_tree
from acclimate.testing import check_method, yield_checks
from acclimate.testing.cases import Case, Violation
from acclimate.testing.contract import STRUCTURE
from acclimate.testing.models import tiny_batches, tiny_model

#: The checks that are fast tests, of every method on the first model that it supports.
FAST = {check.__name__ for check in STRUCTURE} | {"describes_itself", "refuses_bad_batches"}


def list_checks():
    for method in acclimate.list_methods():
        first = None
        for name, check in yield_checks(method):
            model, _, kind = name.rpartition("-")
            first = model if first is None and kind in FAST else first
            is_fast = kind in FAST and model == first
            marks = [] if is_fast else [pytest.mark.slow]
            yield pytest.param(check, id=f"{method}-{name}", marks=marks)


ALL = list(list_checks())


@pytest.mark.parametrize("check", ALL)
def test_conforms(check):
    check()


def test_every_method_file_is_registered():
    folder = Path(acclimate.__file__).parent / "methods"
    plumbing = {"__init__", "batch", "compute", "config", "gradient", "heads", "method"}
    plumbing |= {"state", "stream"}
    assert {path.stem for path in folder.glob("*.py")} - plumbing == set(METHODS)


def state_size(adapted):
    return sum(tensor.numel() for tensor in flatten_tree(adapted._tree())[0].values())


@pytest.mark.slow
@pytest.mark.parametrize("method", acclimate.list_methods())
def test_memory_is_bounded_over_300_batches(method):
    """The state does not grow, and the predictions stay finite."""
    case = next(c for c in (Case(method, m) for m in ("batch_norm", "instance_aware")) if c.suits)
    # The published sizes, of memories above all, but for what only takes time.
    adapted = (
        case.wrap(tiny_model(case.model), update_every=64, memory_size=64)
        if (method in ("note", "rotta"))
        else case.build()
    )
    batches = tiny_batches(300, seed=11)
    sizes = []
    for n, (x, y) in enumerate(batches, start=1):
        if adapted.card.is_oracle:
            adapted.reveal(y)
        logits = adapted(x)
        if n % 100 == 0:
            sizes.append(state_size(adapted))
    assert logits.isfinite().all()
    assert sizes[0] == sizes[1] == sizes[2]


def test_names_are_the_registry_s():
    assert all(method.name == name for name, method in METHODS.items())


class Forgetful(METHODS["tent"]):
    """Counts its batches outside of declared state, and so cannot reset.

    Paper: none. Moves norms. Returns logits that drift. Cost of a batch: 1 forward, 1 backward.
    """

    name = "forgetful"

    def loss(self, x):
        self.seen = getattr(self, "seen", 0) + 1
        logits, loss = super().loss(x)
        return logits + self.seen, loss


def test_the_suite_finds_undeclared_state(monkeypatch):
    monkeypatch.setitem(METHODS, "forgetful", Forgetful)
    with pytest.raises(Violation, match="resets_completely"):
        check_method("forgetful", models=["batch_norm"])
