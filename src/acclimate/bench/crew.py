"""Workers of any engine, the jobs that are left for them, and what to do when one is lost."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from acclimate.bench.attempt import LOOK_EVERY, Setup, describe_error
from acclimate.bench.events import Event, OnEvent
from acclimate.bench.job import JobSpec
from acclimate.bench.run_folder import Failure, RunFolder
from acclimate.bench.store import Store
from acclimate.errors import BadInput

#: Seconds that workers have for their last batch and a checkpoint when they are asked to stop.
PATIENCE = 20.0

# Workers that may end one after another before they have come to life.
_MOST_STILLBORN = 3

_MEMORY = (
    "If the machine ran out of memory, use fewer --workers or smaller batches. Run the suite "
    "again to resume the job from its last checkpoint."
)


class Worker(Protocol):
    """Whoever runs jobs, one after another, and tells a queue what happens.

    Attributes:
        job: Name of the folder of the job it works on; None while it has none.
        last: Name of the job before.
        is_ready: Whether it has come to life.
    """

    job: str | None
    last: str | None
    is_ready: bool

    @property
    def is_stillborn(self) -> bool:
        """Whether it has ended before it came to life."""

    @property
    def has_begun(self) -> bool:
        """Whether it was at its job when it ended, so that the job may be what ended it."""

    def begin(self, name: str, spec: JobSpec, folder: RunFolder) -> None:
        """Give it a job."""

    def has_ended(self) -> bool:
        """Return whether there will be no more of it."""

    def describe_end(self) -> str:
        """Return how it ended, as what follows "it"."""

    def last_words(self) -> str:
        """Return what may explain why it could not come to life."""

    def ask_to_stop(self) -> None:
        """Let it write a checkpoint and end."""

    def wait(self, seconds: float) -> None:
        """Return when it has ended, or after that time."""

    def kill(self) -> None:
        """End it if it has not ended, and let go of what it holds."""


#: Takes every message with the worker it is from; None when there will be no more.
Heard = queue.Queue[tuple[Worker, dict[str, Any] | None]]


class Crew:
    """The workers, and what is left for them to do.

    Args:
        store: Where the suite is kept.
        names: Of the folders of the jobs to run.
        setup: What they have in common.
        on_event: Is told what happens.
        hire: Returns a new worker, which tells that queue.
        count: Returns how many there may be, now.
        retries: How often a job is taken up again after a worker was lost at it.

    Attributes:
        workers: Those there are.
    """

    def __init__(
        self,
        store: Store,
        names: Sequence[str],
        setup: Setup,
        on_event: OnEvent,
        *,
        hire: Callable[[Heard], Worker],
        count: Callable[[], int],
        retries: int,
    ) -> None:
        self.workers: list[Worker] = []
        self._store, self._setup, self._on_event = store, setup, on_event
        self._jobs = store.jobs()
        self._left = list(names)
        self._not_before: dict[str, float] = {}  # of jobs that another process works on
        self._hire, self._count, self._retries = hire, count, retries
        self._heard: Heard = queue.Queue()
        self._deaths: Counter[str] = Counter()
        self._n_stillborn = 0

    def run(self) -> None:
        """Return when every job is done or has failed."""
        while self._left or any(worker.job for worker in self.workers):
            self._assign()
            try:
                worker, message = self._heard.get(timeout=LOOK_EVERY)
            except queue.Empty:
                # A process that a dead worker has started may keep its output open.
                for worker in [own for own in self.workers if own.has_ended()]:
                    self._bury(worker)
                continue
            if message is not None:
                self._take(worker, message)
            elif worker in self.workers:
                self._bury(worker)

    def _assign(self) -> None:
        """Give every idle worker a job, as long as there are any, and hire who is missing."""
        now = time.monotonic()
        for name in [name for name in self._left if self._not_before.get(name, 0) <= now]:
            if name in self._not_before and self._store.folder(name).is_done:
                self._left.remove(name)
                self._tell("finished", name)
        free = [name for name in self._left if self._not_before.get(name, 0) <= now]
        for worker in self.workers:
            if free and worker.is_ready and worker.job is None:
                name = min(free, key=lambda name: self._rank(name, worker))
                free.remove(name)
                self._left.remove(name)
                worker.begin(name, self._jobs[name].spec, self._store.folder(name))
        n_coming = sum(not worker.is_ready for worker in self.workers)
        while n_coming < len(free) and len(self.workers) < self._count():
            self.workers.append(self._hire(self._heard))
            n_coming += 1

    def _rank(self, name: str, worker: Worker) -> tuple[bool, int, int]:
        """Return a key that is smallest for the job that suits the worker best."""
        spec = self._jobs[name].spec
        others = [self._jobs[w.job].spec for w in self.workers if w.job and w is not worker]
        # It would only wait for what another one is preparing.
        shared = set(spec.get_pieces()) & {key for other in others for key in other.get_pieces()}
        files = [self._setup.artifacts / f"{key}.acclimate" for key in shared]
        waits = not all(file.is_file() for file in files)
        n_same = 0
        if worker.last is not None:
            pairs = zip(_needs(spec), _needs(self._jobs[worker.last].spec), strict=True)
            n_same = sum(own == other for own, other in pairs)
        return waits, -n_same, self._left.index(name)

    def _take(self, worker: Worker, message: dict[str, Any]) -> None:
        kind, name = message["say"], worker.job
        if kind == "ready":
            worker.is_ready = True
            self._n_stillborn = 0
            return
        if name is None:
            return
        if kind in ("finished", "failed", "busy", "stopped"):
            worker.job = None
        if kind in ("busy", "stopped"):
            self._left.append(name)
            self._not_before[name] = time.monotonic() + LOOK_EVERY
        text = message.get("text", "")
        if kind == "failed":
            text = describe_error(self._store.folder(name))
        self._tell(kind, name, message.get("done", 0), message.get("total", 0), text)

    def _bury(self, worker: Worker) -> None:
        """Go on without a worker that has ended; its job is taken up again, or given up."""
        self.workers.remove(worker)
        how, name = worker.describe_end(), worker.job
        end_all([worker])
        if worker.is_stillborn:
            self._n_stillborn += 1
            if self._n_stillborn >= _MOST_STILLBORN:
                said = worker.last_words()
                raise BadInput(
                    "worker_failed",
                    f"No worker process could be started: it {how}. Its output:\n{said}",
                )
        elif name is not None and worker.has_begun:
            self._deaths[name] += 1
        if name is None:
            return
        folder = self._store.folder(name)
        if folder.is_done:
            self._tell("finished", name)
        elif self._deaths[name] <= self._retries:
            self._left.insert(0, name)
            self._tell("retried", name, text=f"its process {how}")
        else:
            message = f"The process that ran the job {how} (attempt {self._deaths[name]})"
            with folder.hold() as is_mine:
                if is_mine:  # else another process has taken it up
                    folder.fail(Failure("WorkerDied", f"{message}."), _MEMORY)
            self._tell("failed", name, text=f"WorkerDied: {message}.")

    def _tell(self, kind: Any, name: str, done: int = 0, total: int = 0, text: str = "") -> None:
        self._on_event(Event(kind, name, self._jobs[name], done, total, text))


def _needs(spec: JobSpec) -> tuple[Any, ...]:
    """Return what a worker keeps from one job to the next."""
    return (
        (spec.model, spec.weights),
        spec.data_key,
        spec.artifact_key,
    )


def end_all(workers: Iterable[Worker]) -> None:
    """Ask all to stop, wait for them, and end those that do not in time."""
    left = list(workers)
    for worker in left:
        worker.ask_to_stop()
    deadline = time.monotonic() + PATIENCE
    try:
        for worker in left:
            worker.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for worker in left:
            worker.kill()
