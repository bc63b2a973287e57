"""Jobs in several processes, or in this one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from acclimate.corruptions.arrays import Pixels
from acclimate.corruptions.frost import get_frost_root, set_frost_root, warn_if_procedural
from acclimate.corruptions.registry import Family, apply, check_request
from acclimate.errors import AcclimateWarning, check_at_least

K = TypeVar("K")
R = TypeVar("R")

#: Pixels a task: enough to outweigh sending them to another process and back.
_TASK = 2**19


@contextmanager
def open_pool(workers: int) -> Iterator[Executor]:
    """Give a pool of processes for several calls of `apply_in_parallel` or `run_jobs`.

    The processes look for photographs of frost where this one does, and leave warnings to it.
    """
    check_at_least("workers", workers, 1)
    # Not forked: the caller may have threads, whose locks would be copied in any state.
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_start_worker, initargs=(get_frost_root(),)
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(root: Path | None) -> None:
    set_frost_root(root)
    warnings.simplefilter("ignore", AcclimateWarning)


def run_jobs(
    function: Callable[..., R], jobs: Iterable[tuple[K, tuple[Any, ...]]], pool: Executor | None
) -> Iterator[tuple[K, R]]:
    """Yield the key of each job and what the function returned, as they are finished.

    Without a pool, the jobs are done in this process, one after the other.
    """
    if pool is None:
        for key, arguments in jobs:
            yield key, function(*arguments)
        return
    tasks = {pool.submit(function, *arguments): key for key, arguments in jobs}
    for task in as_completed(tasks):
        yield tasks[task], task.result()


def apply_in_parallel(
    images: Pixels,
    name: str,
    severity: int = 5,
    seed: int = 0,
    start: int = 0,
    family: Family = "auto",
    scale: bool = False,
    *,
    workers: int | Executor = 2,
    progress: Callable[[int, int], None] | None = None,
) -> Pixels:
    """Return what `apply` returns, computed by several processes.

    Args:
        workers: How many processes to start, or a pool from `open_pool`.
        progress: Called with the number of images done and to do, whenever a part is finished.
    """
    check_request(images, name, severity, start, family)
    warn_if_procedural(name)
    if isinstance(workers, int):
        with open_pool(workers) as pool:
            return apply_in_parallel(
                images, name, severity, seed, start, family, scale, workers=pool, progress=progress
            )
    step = max(1, _TASK // (images.shape[1] * images.shape[2]))
    jobs = (
        (first, (images[first : first + step], name, severity, seed, start + first, family, scale))
        for first in range(0, len(images), step)
    )
    out = np.empty(images.shape, dtype=np.uint8)
    n_done = 0
    for first, part in run_jobs(apply, jobs, workers):
        out[first : first + len(part)] = part
        n_done += len(part)
        if progress is not None:
            progress(n_done, len(images))
    return out
