"""Settings of the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from acclimate.process import tune_process
if sys.argv[1] == "tuned":
    print(tune_process(), file=sys.stderr)
import torch
torch.set_num_threads(1)
def use(n):
    for _ in range(n):
        torch.ones(12_000_000)
use(20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use(5)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(code, *arguments, **environment):
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "OMP_WAIT_POLICY" and not name.startswith("MALLOC_")
    }
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is on Linux")
def test_large_buffers_are_used_again():
    plain, tuned = int(run(FAULTS, "plain").stdout), int(run(FAULTS, "tuned").stdout)
    assert plain > 10_000  # 5 times 48 MB, in pages of 4 kB
    assert tuned < plain / 20


def test_waiting_threads_sleep_unless_the_user_said_otherwise():
    code = "import os; from acclimate.process import tune_process; tune_process();"
    code += "print(os.environ['OMP_WAIT_POLICY'])"
    assert run(code).stdout.strip() == "PASSIVE"
    assert run(code, OMP_WAIT_POLICY="ACTIVE").stdout.strip() == "ACTIVE"


def test_what_comes_too_late_is_not_claimed():
    code = "import torch; from acclimate.process import tune_process; print(tune_process())"
    assert "OMP_WAIT_POLICY" not in run(code).stdout
    assert "malloc" not in run(code, MALLOC_MMAP_THRESHOLD_="1000000").stdout
