"""Fixtures of the tests of data sets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from acclimate.data import generate


@pytest.fixture(params=["one", "threads", pytest.param("processes", marks=pytest.mark.slow)])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A number of workers. Threads stand in for processes: they share the work, and start faster.

    Each thread has context variables of its own, as a process would.
    """

    def start_threads(n: int, context: object, **more: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(n, **more)

    if request.param == "threads":
        monkeypatch.setattr(generate, "ProcessPoolExecutor", start_threads)
    return 1 if request.param == "one" else 2
