"""The cost of one call: time and memory."""

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
    """Wall time of a call until the device has finished, and peak memory in bytes."""

    ms: float = 0.0
    peak_memory: int | None = None


@contextmanager
def measure_call(device: torch.device) -> Iterator[Cost]:
    """Measure the code inside the context; the yielded cost is complete at its end."""
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
    """Return the peak memory in bytes, as far as the device reports it.

    On CUDA, this is the peak of tensors since `torch.cuda.reset_peak_memory_stats`. On MPS, which
    reports no peak, it is the current memory of tensors. Elsewhere, it is the largest resident set
    of the whole process so far, which does not decrease when memory is freed.
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
    # On Linux, getrusage also includes the parent process, if that was larger.
    lines = status.read_text().splitlines() if status.exists() else []
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    if found:
        return 1024 * int(found[0])
    import resource  # not available on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts in bytes, others in KiB


def _wait(device: torch.device) -> None:
    # Calls on these devices are asynchronous.
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
