"""Processes that run jobs, as the one that starts them sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from acclimate.bench.crew import Heard
from acclimate.bench.job import JobSpec
from acclimate.bench.run_folder import RunFolder

# Every library that could start threads of its own.
_THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
)

_TAIL = 2000


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


def choose_n_workers(n_jobs: int) -> int:
    """Return a number of processes that leaves each of them two cores, where there are so many."""
    return max(1, min(n_jobs, count_cores() // 2))


def limit_threads(n_threads: int) -> dict[str, str]:
    """Return what the environment of a process must say that computes with so many."""
    waiting = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
    return {**dict.fromkeys(_THREADS, str(n_threads)), "OMP_WAIT_POLICY": waiting}


class WorkerProcess:
    """One process, what it is doing, and what it says.

    Args:
        setup: Of all its jobs, as JSON types.
        n_threads: That it computes with.
        heard: Takes what it says.
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
        heard: Heard,
        log: Path,
    ) -> None:
        self.job: str | None = None
        self.last: str | None = None
        self.is_ready = False
        environment = {**os.environ, **limit_threads(n_threads)}
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
        self._heard, self._log = heard, log
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._send({"setup": setup})

    @property
    def is_stillborn(self) -> bool:
        """Whether it has ended before it came to life."""
        return not self.is_ready

    @property
    def has_begun(self) -> bool:
        """Whether it was at its job when it ended."""
        return self.job is not None

    def begin(self, name: str, spec: JobSpec, folder: RunFolder) -> None:
        """Give it a job."""
        self.job = self.last = name
        self._send({"spec": spec.to_dict(), "folder": str(folder.path.resolve())})

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
            return f"was terminated by {signal.Signals(-code).name}"
        return f"exited with code {code}"

    def last_words(self) -> str:
        """Return the end of the log."""
        return self._log.read_text(errors="replace")[-_TAIL:].strip()

    def has_ended(self) -> bool:
        """Return whether the process is there no more."""
        return self.process.poll() is not None

    def wait(self, seconds: float) -> None:
        """Return when it has ended, or after that time."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def kill(self) -> None:
        """End it if it has not ended, and close what it wrote to."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

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
