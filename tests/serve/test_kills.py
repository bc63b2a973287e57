"""A short version of `benchmarks/serve_kills.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.paths import ROOT


@pytest.mark.slow
def test_a_killed_server_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import serve_kills  # type: ignore[import-not-found]

    found = serve_kills.run(tmp_path, kills=1, seconds=0.1)
    assert found["problems"] == []
    assert len(found["lives"]) == 2
    assert all(life["answered"] for life in found["lives"])
    sys.modules.pop("serve_kills")
