"""Damaged and altered files: a short run of `make fuzz`."""

from __future__ import annotations

import pytest
from benchmarks.fuzz import FAILURES, fuzz


@pytest.mark.parametrize("kind", ["states", "weights"])
def test_altered_files_are_refused_or_loaded_as_they_are(kind: str) -> None:
    found = fuzz(kind, 200, seed=1)
    assert {outcome: found[outcome] for outcome in FAILURES} == dict.fromkeys(FAILURES, 0), found
    assert found["n"] == 200
    assert found["refused"] > 100
