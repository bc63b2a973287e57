"""A worker of the Ray engine, as the one who hired it sees it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

from acclimate.bench.attempt import Lost, try_job
from acclimate.bench.crew import Heard
from acclimate.bench.desk import Desk, Goods
from acclimate.bench.job import JobSpec
from acclimate.bench.remote import Message
from acclimate.bench.run_folder import RunFolder

# Seconds for the thread of a worker that was killed to take notice.
_JOIN = 5.0


class RayWorker:
    """An actor on some node, as seen from here; a thread serves it.

    Args:
        ray: The package.
        actor: A `RemoteWorker` on some node, or soon on one.
        goods: What its jobs may ask for.
        heard: Takes what it says.

    Attributes:
        job: Name of the folder of the job it works on; None while it has none.
        is_ready: Whether it has come to life.
        last: Name of the job before.
    """

    def __init__(self, ray: Any, actor: Any, goods: Goods, heard: Heard) -> None:
        self.job: str | None = None
        self.last: str | None = None
        self.is_ready = False
        self._ray, self._actor, self._goods, self._heard = ray, actor, goods, heard
        self._todo: queue.Queue[tuple[JobSpec, RunFolder] | None] = queue.Queue()
        self._stop = threading.Event()
        self._node, self._error = "", "ended"
        self._has_begun = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def is_stillborn(self) -> bool:
        """Whether it has ended before it came to life."""
        return not self.is_ready

    @property
    def has_begun(self) -> bool:
        """Whether it was at its job when it ended; else its node was lost before."""
        return self._has_begun

    def begin(self, name: str, spec: JobSpec, folder: RunFolder) -> None:
        """Give it a job."""
        self.job = self.last = name
        self._has_begun = False
        self._todo.put((spec, folder))

    def has_ended(self) -> bool:
        """Return whether nobody serves it any more."""
        return not self._thread.is_alive()

    def describe_end(self) -> str:
        """Return how it ended."""
        lines = [line.strip() for line in self._error.splitlines() if line.strip()]
        where = f" on {self._node}" if self._node else ""
        return f"was lost{where} ({lines[-1].partition('. ')[0].rstrip('.')})"

    def last_words(self) -> str:
        """Return all that Ray says of its end."""
        return self._error

    def ask_to_stop(self) -> None:
        """Let it tell a checkpoint and end; one that has not come to life has none to tell."""
        self._stop.set()
        self._todo.put(None)
        if self.is_ready:
            self._actor.stop.remote()
        else:
            self._ray.kill(self._actor)

    def wait(self, seconds: float) -> None:
        """Return when it has ended, or after that time."""
        self._thread.join(seconds)

    def kill(self) -> None:
        """End it, and whoever waits for it here."""
        self._ray.kill(self._actor)
        self._thread.join(_JOIN)

    def _serve(self) -> None:
        try:
            self._node = self._ray.get(self._actor.where.remote())
            self._say("ready")
            is_free = True
            while is_free and (order := self._todo.get()) is not None:
                is_free = self._try(*order)
            if is_free:
                self._ray.get(self._actor.close.remote())
        except (Lost, self._ray.exceptions.RayError) as error:
            self._error = str(error)
        finally:
            self._heard.put((self, None))

    def _try(self, spec: JobSpec, folder: RunFolder) -> bool:
        """Run a job as far as it goes; say whether the actor has nothing to do any more."""
        desk = Desk(spec, self._goods, self._say, self._answer, self._stop.is_set)

        def run(sink: Any) -> None:
            desk.serve(sink, self._listen(spec))

        end = try_job(spec, folder, lambda: self._say("started"), run)
        self._say(end)
        return desk.is_over or end in ("busy", "finished")

    def _listen(self, spec: JobSpec) -> Iterator[list[Message]]:
        sums = self._goods.sum_files(spec)
        try:
            for reference in self._actor.run.remote(spec.to_dict(), sums):
                said = self._ray.get(reference)
                self._has_begun = True
                yield said
        except self._ray.exceptions.RayError as error:
            raise Lost(str(error)) from error

    def _answer(self, value: Any) -> None:
        # Ray replaces what was put by its value, on the node of the actor.
        self._actor.answer.remote(value)

    def _say(self, kind: str, done: int = 0, total: int = 0, text: str = "") -> None:
        self._heard.put((self, {"say": kind, "done": done, "total": total, "text": text}))
