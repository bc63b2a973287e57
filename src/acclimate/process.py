"""Process-wide settings that make training on a CPU faster, and threads of processes.

They affect everything in the process, so a library must not change them on its own. The command
line does; a program can call `tune_process()` before it imports torch.
"""

from __future__ import annotations

import ctypes
import os
import sys

# Every library that could start threads of its own.
_THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
)
# From glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1


def tune_process() -> dict[str, str]:
    """Reuse large memory blocks and let waiting threads sleep; return what was set.

    By default glibc requests every large block of memory from the kernel and returns it
    immediately, and the kernel clears it page by page each time; a training step does so hundreds
    of times. The threads of OpenMP spin while they wait, which takes cores from other processes.

    Settings in the environment take precedence (`OMP_WAIT_POLICY`, `MALLOC_MMAP_THRESHOLD_`). The
    setting of OpenMP works only before torch is loaded, the one of memory only with glibc. The
    process keeps memory that was used once.
    """
    done = {}
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = done["OMP_WAIT_POLICY"] = "PASSIVE"
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ and _keep_memory():
        done["malloc"] = "large blocks are kept"
    return done


def _keep_memory() -> bool:
    """Make glibc's allocator keep large blocks; return whether that worked."""
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:  # another C library, such as musl
        return False
    kept = set_option(_M_MMAP_THRESHOLD, 2**30), set_option(_M_TRIM_THRESHOLD, _LARGEST)
    return all(kept)


def count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_threads(n_workers: int) -> int:
    """Return how many threads each worker computes with, so that they share the cores.

    Fewer, if the environment limits them (`OMP_NUM_THREADS`).
    """
    share = max(1, count_cores() // max(1, n_workers))
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, max(1, int(asked))) if asked.isdecimal() else share


def limit_threads(n_threads: int) -> dict[str, str]:
    """Return the environment variables of a process that computes with so many threads."""
    waiting = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
    return {**dict.fromkeys(_THREADS, str(n_threads)), "OMP_WAIT_POLICY": waiting}
