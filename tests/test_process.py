"""Settings of the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from acclimate.process import count_cores, limit_threads, share_threads

# Counts the pages that the kernel gives for 5 buffers of 48 MB, after others were used. Large pages
# are switched off (PR_SET_THP_DISABLE is 41), so that there are as many of them everywhere.
FAULTS = """
import ctypes, resource, sys
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
from acclimate.process import tune_process
if sys.argv[1] == "tuned":
    print(tune_process(), file=sys.stderr)
if sys.argv[2] == "torch":
    import torch
    torch.set_num_threads(1)
    make = lambda: torch.ones(12_000_000)
else:
    make = lambda: b"x" * 48_000_000
def use(n):
    for _ in range(n):
        make()
use(10)
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
@pytest.mark.parametrize("kind", ["bytes", pytest.param("torch", marks=pytest.mark.slow)])
def test_large_buffers_are_used_again(kind):
    import resource  # not everywhere

    plain, tuned = (int(run(FAULTS, how, kind).stdout) for how in ("plain", "tuned"))
    n_pages = 5 * 48_000_000 / resource.getpagesize()
    assert plain > 0.9 * n_pages
    # Of torch's buffers, one in five was seen to be requested anew on a busy machine.
    assert tuned < (0.05 if kind == "bytes" else 0.21) * n_pages


def test_waiting_threads_sleep_unless_the_user_said_otherwise():
    code = "import os; from acclimate.process import tune_process; tune_process();"
    code += "print(os.environ['OMP_WAIT_POLICY'])"
    assert run(code).stdout.strip() == "PASSIVE"
    assert run(code, OMP_WAIT_POLICY="ACTIVE").stdout.strip() == "ACTIVE"


def test_what_comes_too_late_is_not_claimed():
    code = "import sys; sys.modules['torch'] = sys; "  # as if it were imported
    code += "from acclimate.process import tune_process; print(tune_process())"
    assert "OMP_WAIT_POLICY" not in run(code).stdout
    assert "malloc" not in run(code, MALLOC_MMAP_THRESHOLD_="1000000").stdout


def test_cores_are_divided(monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("acclimate.process.count_cores", lambda: 8)
    assert [share_threads(n) for n in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert set(limit_threads(3).values()) == {"3", "PASSIVE"}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [share_threads(n) for n in (1, 2, 8)] == [3, 3, 1]


def test_cores_are_counted() -> None:
    assert count_cores() >= 1
