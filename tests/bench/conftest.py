"""Processes of tests, which end with them, and images that are made once."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.bench.jobs import ROOT, environment
from tests.bench.processes import Launch


@pytest.fixture(scope="session", autouse=True)
def rendered_once() -> Iterator[None]:
    """Keep the built-in images: jobs of a few batches take longer to draw them than to run."""
    module = importlib.import_module("acclimate.builtin.render")  # else the function of that name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_render_block", functools.cache(module._render_block))
        yield


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start commands in sessions of their own; whatever is left of them is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(command: list[str], **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(**variables),
            cwd=ROOT,
            text=True,
            start_new_session=True,
            # In the background of a shell Ctrl-C may be ignored, and that is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
