"""Errors and warnings are expected by their code and their data, not by their sentences."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from acclimate.errors import AcclimateError, AcclimateWarning, Coded


@contextmanager
def raises(
    code: str, error_class: type[AcclimateError] = AcclimateError, /, **data: Any
) -> Iterator[pytest.ExceptionInfo[AcclimateError]]:
    """Expect an error with this code and, where they are named, these data.

    A function in the place of a value is asked whether the value found is right.
    """
    with pytest.raises(error_class) as caught:
        yield caught
    check_coded(caught.value, code, **data)


#: What tiny images in tiny batches are warned of; see `filterwarnings` in pyproject.toml.
USUAL = ("small_batch", "correlated_stream", "accuracy_left_out", "low_accuracy")


@contextmanager
def warns(code: str, /, **data: Any) -> Iterator[list[AcclimateWarning]]:
    """Expect one warning or more with this code and these data, and no other of ours.

    Those that every tiny batch gives are not counted, unless they are expected.

    The list that is given is filled at the end of the block.
    """
    ours: list[AcclimateWarning] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield ours
    found = [note.message for note in caught if isinstance(note.message, AcclimateWarning)]
    ours += [note for note in found if note.code not in USUAL or note.code == code]
    assert ours, f"no warning was given; expected {code}"
    for warning in ours:
        check_coded(warning, code, **data)


def check_coded(error: BaseException | None, code: str, /, **data: Any) -> None:
    """Check the code and some data of an error or a warning that was caught."""
    assert isinstance(error, Coded), repr(error)
    assert error.code == code, f"expected {code}, found {error.code}: {error}"
    for name, expected in data.items():
        found = error.data[name]
        holds = expected(found) if callable(expected) else found == expected
        assert holds, f"{code}: {name} is {found!r}, expected {expected!r}: {error}"
