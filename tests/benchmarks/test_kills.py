"""The script that kills commands: a short run of it, in which nothing may differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.jobs import environment
from tests.paths import ROOT


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", ["eval", "bench run", "adapt", "train"])
def test_commands_that_are_killed_resume_to_the_same_results(command: str, tmp_path: Path) -> None:
    words = [sys.executable, "benchmarks/kills.py", "--kills", "3", "--only", command]
    words += ["--out", str(tmp_path / "found.json")]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())["commands"][command]
    assert (found["kills"], found["different"]) == (3, 0)
    assert found["runs_killed_at_least_once"] >= 1
