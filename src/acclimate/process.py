"""Settings of the whole process that make training on a processor faster.

They concern everything in the process, so a library must not change them unasked: the command line
does, and a program of one's own can, by calling `tune_process()` before it imports torch.
"""

from __future__ import annotations

import ctypes
import os
import sys

# Of glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1


def tune_process() -> dict[str, str]:
    """Make large buffers be used again, and waiting threads sleep; return what was set.

    By default glibc asks the kernel for every large block of memory and gives it back at once, and
    the kernel clears it page by page each time; a training step does so hundreds of times. And the
    threads of OpenMP spin while they wait, which takes the cores from whoever else could use them.

    What the environment says already is left alone (`OMP_WAIT_POLICY`, `MALLOC_MMAP_THRESHOLD_`).
    The second setting works only before torch is loaded; the first only with glibc. The price is
    that memory which was used once is kept by the process.
    """
    done = {}
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = done["OMP_WAIT_POLICY"] = "PASSIVE"
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ and _keep_memory():
        done["malloc"] = "large blocks are kept"
    return done


def _keep_memory() -> bool:
    """Tell glibc's allocator to keep large blocks; say whether there is one that does."""
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:  # another C library, such as musl
        return False
    kept = set_option(_M_MMAP_THRESHOLD, 2**30), set_option(_M_TRIM_THRESHOLD, _LARGEST)
    return all(kept)
