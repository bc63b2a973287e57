"""Processes that run jobs, as the one that starts them sees them."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

# Every library that could start threads of its own.
_THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
)

#: Seconds that a worker has for its last batch and a checkpoint when it is asked to stop.
PATIENCE = 20.0


def count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_threads(n_workers: int) -> int:
    """Return how many threads each worker gets: all cores are used, and none by two.

    If the environment asks for fewer (`OMP_NUM_THREADS`), it gets its way.
    """
    share = max(1, count_cores() // max(1, n_workers))
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, max(1, int(asked))) if asked.isdecimal() else share


class WorkerProcess:
    """One process, what it is doing, and what it says.

    Args:
        setup: Of all its jobs, as JSON types.
        n_threads: That it computes with.
        heard: Takes every message with the worker it is from; None when there will be no more.
        log: File that everything else it says is appended to.

    Attributes:
        job: Name of the folder of the job it works on; None while it has none.
        is_ready: Whether it has come to life.
        last: Name of the job before.
    """

    def __init__(
        self,
        setup: dict[str, Any],
        n_threads: int,
        heard: queue.Queue[tuple[WorkerProcess, dict[str, Any] | None]],
        log: Path,
    ) -> None:
        self.job: str | None = None
        self.last: str | None = None
        self.is_ready = False
        environment = {**os.environ, **dict.fromkeys(_THREADS, str(n_threads))}
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "acclimate.bench.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
                encoding="utf-8",
            )
        self._heard = heard
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._send({"setup": setup})

    def begin(self, name: str, spec: dict[str, Any], folder: Path) -> None:
        """Give it a job."""
        self.job = self.last = name
        self._send({"spec": spec, "folder": str(folder.resolve())})

    def ask_to_stop(self) -> None:
        """Let it write a checkpoint and end."""
        self._send({"stop": True})
        with suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()

    def describe_end(self) -> str:
        """Return how it ended."""
        code = self.process.wait()
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with code {code}"

    def _send(self, command: dict[str, Any]) -> None:
        # If it is dead, the listener will say so.
        with suppress(OSError, ValueError):
            if self.process.stdin is not None:
                self.process.stdin.write(json.dumps(command) + "\n")
                self.process.stdin.flush()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            # The last line of a process that was killed may be torn.
            with suppress(ValueError):
                self._heard.put((self, json.loads(line)))
        self._heard.put((self, None))


def end_all(workers: Iterable[WorkerProcess]) -> None:
    """Ask all to stop, wait for them, and end those that do not in time."""
    left = list(workers)
    for worker in left:
        worker.ask_to_stop()
    deadline = time.monotonic() + PATIENCE
    try:
        for worker in left:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for worker in left:
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()
            if worker.process.stdout is not None:
                worker.process.stdout.close()
