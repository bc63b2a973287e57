"""Processes of tests, and waiting for them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

Launch = Callable[..., "subprocess.Popen[str]"]

CLI = [sys.executable, "-c", "from acclimate.cli.main import main; main()", "bench", "run"]


def wait_until(holds: Callable[[], bool], seconds: float = 400.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def has_records(folder: Path, n: int) -> Callable[[], bool]:
    path = folder / "records.jsonl"
    return lambda: path.is_file() and path.read_bytes().count(b"\n") >= n


def find_children(number: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        state = _read_stat(path)
        if state is not None and state[1] == str(number) and state[0] != "Z":
            found.append(int(path.parent.name))
    return found


def is_running(number: int) -> bool:
    """Return whether there is such a process, and it is more than a name in a table."""
    state = _read_stat(Path(f"/proc/{number}/stat"))
    return state is not None and state[0] != "Z"


def _read_stat(path: Path) -> list[str] | None:
    """Return the state of a process, the number of its parent and more; None if it has ended."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
