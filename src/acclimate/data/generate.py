"""Corrupted sets made here, in the layout of CIFAR-10-C, resumable.

`fog.npy` holds five blocks, one a severity, each as long as the clean set. Only blocks that were
asked for are filled; `generated.json` lists those that are, each recorded when it is complete. A
file is named `fog.npy.part` until the severities of its first run are there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from acclimate._version import __version__
from acclimate.corruptions import provenance
from acclimate.corruptions.frost import get_frost_root, set_frost_root, warn_if_procedural
from acclimate.data.arrays import LabelledImages, Pixels, array_sha256, write_array
from acclimate.data.corruptor import SEVERITIES, check_request, corrupt_block, find_recipe
from acclimate.data.ledger import MADE_FROM, find_stale, read_ledger, write_ledger
from acclimate.data.places import Notify, Progress, hold_lock, make_folder
from acclimate.errors import AcclimateWarning, BadInput

_BLOCK = 500  # images a task: enough to outweigh sending them to another process


def generate(
    clean: LabelledImages,
    folder: Path,
    names: Sequence[str],
    severities: Sequence[int],
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> None:
    """Make corrupted copies of a set, as far as they are not there yet.

    Photographs of frost are looked for as `acclimate.corruptions.frost.frost_from` says.

    Args:
        clean: The set to corrupt.
        folder: Where to; made if needed.
        names: Corruptions.
        severities: From 1 to 5.
        seed: Of the random draws of all images.
        workers: Processes; 1 computes in this one.
        progress: Is told of images.
        notify: Is told when another process works on the same folder.

    Raises:
        BadInput: A name or severity is unknown, or the folder holds something else.
    """
    check_request(names, severities)
    make_folder(folder)
    with hold_lock(folder, "generate", notify):
        ledger = _open_ledger(clean, folder, seed)
        if not (folder / "labels.npy").exists():
            _write_labels(clean, folder)
        with open_pool(workers) as pool:
            for name in dict.fromkeys(names):
                stale = find_stale(folder, name, severities)
                for severity in stale:
                    del ledger["blocks"][name][str(severity)]
                if stale and notify is not None:
                    what = "version of the corruption"
                    if name == "frost":
                        what += ", or from other pictures"
                    notify(f"{name} was made by another {what}: made anew.")
                _make(clean, folder, name, sorted(set(severities)), ledger, pool, progress)


def _open_ledger(clean: LabelledImages, folder: Path, seed: int) -> dict[str, Any]:
    source = {key: clean.description[key] for key in ("name", "split", "source", "sha256")}
    ledger = read_ledger(folder)
    if ledger is None:
        foreign = sorted(path.name for path in folder.glob("*.npy"))
        if foreign:
            raise BadInput(
                "other_content",
                f"{folder} holds {foreign[0]} and other arrays that were not generated here. Give "
                "another folder by --out, so that the two are not mixed.",
                path=folder,
            )
        shape = list(clean.images.shape[1:])
        return {"source": source, "seed": seed, "n": len(clean), "shape": shape, "blocks": {}}
    for key, what, found, wanted in (
        ("seed", "seed", ledger["seed"], seed),
        ("sha256", "pixels of SHA-256", ledger["source"]["sha256"], source["sha256"]),
    ):
        if found != wanted:
            raise BadInput(
                "made_differently",
                f"{folder} was generated from {what} {found}, asked for is {wanted}. Give another "
                "folder by --out, or remove that one.",
                path=folder,
                differences={key: (found, wanted)},
            )
    return ledger


def _write_labels(clean: LabelledImages, folder: Path) -> None:
    # One byte each, as published, while the numbers fit.
    kind = np.uint8 if len(clean.classes) <= 256 else np.int64
    part = folder / "labels.npy.part"
    write_array(part, np.tile(np.asarray(clean.labels, kind), len(SEVERITIES)))
    part.replace(folder / "labels.npy")


def _make(
    clean: LabelledImages,
    folder: Path,
    name: str,
    severities: Sequence[int],
    ledger: dict[str, Any],
    pool: ProcessPoolExecutor | None,
    progress: Progress | None,
) -> None:
    final, part = folder / f"{name}.npy", folder / f"{name}.npy.part"
    shape = (len(SEVERITIES) * len(clean), *clean.images.shape[1:])
    path = final if final.exists() else part
    if not _fits(path, shape):
        ledger["blocks"].pop(name, None)
        write_ledger(folder, ledger)
        path.unlink(missing_ok=True)
        path = part
        # The file is as long as its header says, but takes no room where nothing was written.
        np.lib.format.open_memmap(path, "w+", np.uint8, shape).flush()
    made = ledger["blocks"].setdefault(name, {})
    for severity in severities:
        if str(severity) in made:
            continue
        if name == "frost":
            warn_if_procedural()
        write_ledger(folder, ledger)  # first, so that a block that is being made is not listed
        array = np.lib.format.open_memmap(path, "r+")
        block = array[(severity - 1) * len(clean) : severity * len(clean)]
        _fill(block, clean.images, name, severity, ledger["seed"], pool, progress)
        array.flush()
        made[str(severity)] = {
            "version": __version__,
            "recipe": find_recipe(name, severity, shape[1:]),
            "sha256": array_sha256(block),
            MADE_FROM: provenance(name),
        }
        write_ledger(folder, ledger)
    if path == part:
        part.replace(final)


def _fits(path: Path, shape: tuple[int, ...]) -> bool:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, ValueError, OSError, EOFError):
        return False
    return bool(array.shape == shape and array.dtype == np.uint8)


def _fill(
    block: npt.NDArray[Any],
    images: Pixels,
    name: str,
    severity: int,
    seed: int,
    pool: ProcessPoolExecutor | None,
    progress: Progress | None,
) -> None:
    n = len(images)
    done = 0
    for start, spoiled in _iter_corrupted(images, name, severity, seed, pool):
        block[start : start + len(spoiled)] = spoiled
        done += len(spoiled)
        if progress is not None:
            progress(f"{name}, severity {severity}", done, n)


def _iter_corrupted(
    images: Pixels, name: str, severity: int, seed: int, pool: ProcessPoolExecutor | None
) -> Iterator[tuple[int, Pixels]]:
    """Yield corrupted blocks with their places, in any order: an image depends on its own place."""
    tasks: dict[Future[Pixels], int] = {}
    for start in range(0, len(images), _BLOCK):
        part = np.asarray(images[start : start + _BLOCK])
        if pool is None:
            yield start, corrupt_block(part, name, severity, seed, start)
        else:
            tasks[pool.submit(corrupt_block, part, name, severity, seed, start)] = start
    for task in as_completed(tasks):
        yield tasks[task], task.result()


@contextmanager
def open_pool(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """Give a pool of processes, or None for one worker: this process does the work itself.

    The processes look for photographs of frost where this one does, and leave warnings to it.
    """
    if workers < 1:
        raise BadInput(
            "out_of_range",
            f"expected at least 1 worker, found {workers}.",
            option="workers",
            found=workers,
        )
    if workers == 1:
        yield None
        return
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
