"""A process that runs the jobs it is told, one after another: `python -m acclimate.bench.worker`.

It reads commands from its input and says what happens on its output, one line of JSON each. When
its input ends, because whoever started it has died, it writes a checkpoint and ends, too. How many
threads it computes with is in its environment, since torch looks there once, when it is loaded.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from typing import Any, TextIO

from acclimate.process import tune_process

# Seconds between two reports of progress: nobody reads faster.
_SAY_EVERY = 0.1


class Worker:
    """Reads commands in a thread, so that a job can be stopped while it runs.

    Args:
        commands: Where they come from.
        answers: Where to say what happens.
    """

    def __init__(self, commands: TextIO, answers: TextIO) -> None:
        self._commands, self._answers = commands, answers
        self._todo: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._stop = threading.Event()
        self._said = 0.0

    def run(self) -> None:
        """Do as told until there is nothing more to be told."""
        # A Ctrl-C reaches all processes of a terminal; the one that started this one decides.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._listen, daemon=True).start()
        from acclimate.bench.attempt import Setup, Tries
        from acclimate.bench.job import JobSpec
        from acclimate.bench.run_folder import RunFolder

        first = self._todo.get()
        if first is None:
            return
        tries = Tries(Setup.from_dict(first["setup"]), self._tell, self._stop.is_set)
        load_optimizers()
        self._say({"say": "ready"})
        while (command := self._todo.get()) is not None and not self._stop.is_set():
            folder = RunFolder(command["folder"])
            end = tries.run(JobSpec.from_dict(command["spec"]), folder)
            self._say({"say": end})

    def _listen(self) -> None:
        for line in self._commands:
            command = json.loads(line)
            if "stop" in command:
                break
            self._todo.put(command)
        self._stop.set()
        self._todo.put(None)

    def _tell(self, kind: str, done: int, total: int, text: str) -> None:
        now = time.monotonic()
        if kind == "progress" and done < total and now < self._said + _SAY_EVERY:
            return
        self._said = now
        self._say({"say": kind, "done": done, "total": total, "text": text})

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self._answers.write(json.dumps(message) + "\n")
            self._answers.flush()
        except BrokenPipeError:  # nobody listens any more
            self._stop.set()


def load_optimizers() -> None:
    """Load what torch leaves until the first step of an optimiser: two seconds, once a process."""
    import torch

    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.Adam([parameter]).step()


def main() -> None:
    """Keep the output for answers: whatever a model prints goes to the log."""
    tune_process()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    Worker(sys.stdin, answers).run()


if __name__ == "__main__":
    main()
