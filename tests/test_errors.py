"""Errors: every one has a declared code with its data, and the page about them is current."""

from __future__ import annotations

import pickle
import re

import pytest

from acclimate.errors import AcclimateError, AcclimateWarning, BadInput
from tests.error_sites import KINDS, find_faults, list_sites
from tests.paths import ROOT

SITES = list(list_sites())
CONCRETE = [kind for kind in KINDS.values() if kind.all_codes()]


def test_the_source_is_read():
    assert len(SITES) > 500
    assert {site.kind for site in SITES} > {"BadInput", "AcclimateWarning", "MissingExtra"}


def test_every_error_has_a_declared_code_and_exactly_its_data():
    assert [fault for fault in map(find_faults, SITES) if fault] == []


def test_every_declared_code_is_used():
    used = {(base.__name__, site.code) for site in SITES for base in KINDS[site.kind].__mro__}
    declared = {
        (name, code) for name, kind in KINDS.items() for code in vars(kind).get("codes", ())
    }
    assert sorted(declared - used) == []


def test_a_code_is_declared_once_in_a_line_of_classes():
    for kind in KINDS.values():
        inherited = [code for base in kind.__mro__[1:] for code in vars(base).get("codes", ())]
        assert not set(vars(kind).get("codes", ())) & set(inherited)


@pytest.mark.parametrize("kind", CONCRETE)
def test_codes_are_short_snake_case_and_explained_in_one_sentence(kind):
    for code, text in kind.codes.items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+){0,3}", code), code
        assert text.endswith("."), code


@pytest.mark.parametrize("kind", CONCRETE)
def test_code_sentence_and_data_survive_a_pickle(kind):
    code = next(iter(kind.all_codes()))
    error = pickle.loads(pickle.dumps(kind(code, "a sentence.", name="x", path="y", found=(1, 2))))
    assert type(error) is kind
    assert (error.code, str(error)) == (code, "a sentence.")
    assert (error.name, error.path, error.found) == ("x", "y", (1, 2))
    assert error.data == {"name": "x", "path": "y", "found": (1, 2)}


def test_data_that_is_not_there_is_an_attribute_error():
    error = BadInput("not_found", "gone.", path="x")
    with pytest.raises(AttributeError, match="'found'; its data: path"):
        error.found  # noqa: B018
    assert not hasattr(error, "found")


def test_undeclared_codes_are_refused():
    with pytest.raises(TypeError, match='BadInput declares no code "nonsense"'):
        BadInput("nonsense", "a sentence.")


def test_classes_from_outside_declare_codes_of_their_own():
    class Cold(AcclimateError):
        codes = {"too_cold": "It is `degrees` outside."}  # noqa: RUF012

    assert Cold("too_cold", "wear a coat.", degrees=-5).degrees == -5
    assert set(Cold.all_codes()) == {"too_cold", *AcclimateError.codes}


def test_warnings_have_codes_too():
    assert issubclass(AcclimateWarning, UserWarning)
    assert not issubclass(AcclimateWarning, AcclimateError)


def test_the_page_is_what_the_classes_say():
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    module: dict[str, object] = {"__file__": str(ROOT / "docs" / "make_errors.py")}
    exec((ROOT / "docs" / "make_errors.py").read_text(), module)
    assert page == module["make_page"](), "run: python docs/make_errors.py"  # type: ignore[operator]
