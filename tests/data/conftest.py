"""Fixtures of the tests of data sets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from acclimate.corruptions import parallel
from tests.domains.samples import make_tree


@pytest.fixture(params=["one", "threads", pytest.param("processes", marks=pytest.mark.slow)])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A number of workers. Threads stand in for processes: they share the work, and start faster.

    Each thread has context variables of its own, as a process would.
    """

    def start_threads(n: int, context: object, **more: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(n, **more)

    if request.param == "threads":
        monkeypatch.setattr(parallel, "ProcessPoolExecutor", start_threads)
    return 1 if request.param == "one" else 2


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three domains of 20 images each in a folder `mine`, only to be read."""
    return make_tree(tmp_path_factory.mktemp("domains") / "mine")
