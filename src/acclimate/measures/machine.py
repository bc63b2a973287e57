"""What one call costs the machine: time and memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass
class Cost:
    """Time and memory of one call.

    Attributes:
        ms: Wall time in milliseconds, until the device has finished.
        peak_memory: In bytes; see `find_peak_memory`.
    """

    ms: float = 0.0
    peak_memory: int | None = None


@contextmanager
def measure_call(device: torch.device) -> Iterator[Cost]:
    """Measure what happens inside; the yielded cost is filled in at the end."""
    cost = Cost()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    _wait(device)
    start = time.perf_counter()
    yield cost
    _wait(device)
    cost.ms = 1000 * (time.perf_counter() - start)
    cost.peak_memory = find_peak_memory(device)


def find_peak_memory(device: torch.device) -> int | None:
    """Return the bytes that were in use at most, as far as the device tells.

    On CUDA the tensors' peak since `torch.cuda.reset_peak_memory_stats`; on MPS what tensors take
    now, as it keeps no peak; elsewhere the largest resident set of the whole process so far, which
    does not fall when memory is freed. None on Windows, where the standard library does not tell.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.current_allocated_memory()
    return find_resident_peak()


def find_resident_peak() -> int | None:
    """Return the largest resident set of this process so far, in bytes; None on Windows."""
    if sys.platform == "win32":
        return None
    status = Path("/proc/self/status")
    # On Linux getrusage also tells of the process that started this one, if that was larger.
    lines = status.read_text().splitlines() if status.exists() else []
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    if found:
        return 1024 * int(found[0])
    import resource  # not there on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts in bytes, others in KiB


def _wait(device: torch.device) -> None:
    # A call to these devices returns before its work is done.
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
