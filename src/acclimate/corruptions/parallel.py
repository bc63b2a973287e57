"""Corrupting with several processes at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context

import numpy as np

from acclimate.corruptions.arrays import Pixels
from acclimate.corruptions.frost import warn_if_procedural
from acclimate.corruptions.registry import Family, apply, check_request
from acclimate.errors import AcclimateWarning, BadInput

#: Takes the count of images done and the count to do.
Progress = Callable[[int, int], None]

#: Pixels a task: enough to outweigh sending them to another process and back.
_TASK = 2**19


@contextmanager
def open_pool(workers: int) -> Iterator[Executor]:
    """Give a pool of processes for several calls of `apply_in_parallel`."""
    if workers < 1:
        raise BadInput(
            "out_of_range",
            f"Expected at least 1 worker, found {workers}.",
            option="workers",
            found=workers,
        )
    # Not forked: the caller may have threads, whose locks would be copied in any state.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


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
    progress: Progress | None = None,
) -> Pixels:
    """Return what `apply` returns, computed by several processes.

    Args:
        images: As for `apply`, and so are all others up to `scale`.
        name: See there.
        severity: See there.
        seed: See there.
        start: See there.
        family: See there.
        scale: See there.
        workers: How many processes to start, or a pool from `open_pool`.
        progress: Called in this process whenever a part is finished.

    Raises:
        BadInput: An argument is not one that `apply` takes, or there are no workers.
        MissingExtra: The corruption needs SciPy or OpenCV, which are not installed.
    """
    check_request(images, name, severity, start, family)
    if name == "frost":
        warn_if_procedural()
    if isinstance(workers, int):
        with open_pool(workers) as pool:
            return apply_in_parallel(
                images, name, severity, seed, start, family, scale, workers=pool, progress=progress
            )
    n_together = max(1, _TASK // (images.shape[1] * images.shape[2]))
    out = np.empty(images.shape, dtype=np.uint8)
    tasks = {}
    for first in range(0, len(images), n_together):
        part = np.asarray(images[first : first + n_together])
        task = workers.submit(
            _apply_quietly, part, name, severity, seed, start + first, family, scale
        )
        tasks[task] = first
    n_done = 0
    for task in as_completed(tasks):
        part = task.result()
        out[tasks[task] : tasks[task] + len(part)] = part
        n_done += len(part)
        if progress is not None:
            progress(n_done, len(images))
    return out


def _apply_quietly(
    images: Pixels, name: str, severity: int, seed: int, start: int, family: Family, scale: bool
) -> Pixels:
    # The calling process has warned already.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AcclimateWarning)
        return apply(images, name, severity, seed, start, family, scale)
