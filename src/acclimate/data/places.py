"""Where data lies, and how it gets there: one root, locks, folders that appear in one step."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from acclimate import storage
from acclimate.corruptions.frost import VARIABLE as VARIABLE
from acclimate.corruptions.frost import usual_root
from acclimate.storage import guard_writing

#: Takes a stage, the count done and the count to do.
Progress = Callable[[str, int, int | None], None]
#: Takes one line for the user, such as why a mirror was given up.
Notify = Callable[[str], None]


def silent(*_: Any) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Feedback:
    """What is called while a data set is fetched or made: with its progress, and with notes."""

    progress: Progress = silent
    note: Notify = silent


QUIET = Feedback()


def data_root(explicit: str | Path | None = None) -> Path:
    """Return the folder all sets are kept in; it need not exist yet.

    Without an explicit folder it is that of the environment variable `ACCLIMATE_DATA`, or the
    user's cache folder.
    """
    return usual_root() if explicit is None else Path(explicit).expanduser()


def make_folder(folder: Path) -> Path:
    """Return a folder of the data, created with its parents if it is missing."""
    where = f"Choose another location with --data-dir or the environment variable {VARIABLE}."
    return storage.make_folder(folder, where)


@contextmanager
def hold_lock(root: Path, name: str, note: Notify = silent) -> Iterator[None]:
    """Keep other processes from working on the same thing under this root."""
    # The file stays: removing it would let two waiting processes lock two different files.
    lock = FileLock(make_folder(root / ".locks") / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        note(f"another process is at work on {name}; waiting for it.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Give an empty neighbour to fill, which takes the target's place when the block ends well.

    To be used under a lock: what an interrupted process left behind is cleared away.
    """
    make_folder(target.parent)
    for stale in target.parent.glob(f".{target.name}.*.part"):
        shutil.rmtree(stale)
    neighbour = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    neighbour.mkdir()
    try:
        with guard_writing(target):
            yield neighbour
        if target.exists():
            old = target.with_name(f".{target.name}.old.part")
            target.rename(old)
            neighbour.rename(target)
            shutil.rmtree(old)
        else:
            neighbour.rename(target)
    except BaseException:
        shutil.rmtree(neighbour, ignore_errors=True)
        raise
