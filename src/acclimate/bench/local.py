"""The local engine: processes on this machine, with its cores divided among them."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from acclimate.bench.attempt import LOOK_EVERY, Setup, describe_error
from acclimate.bench.events import Event, OnEvent
from acclimate.bench.spec import JobSpec
from acclimate.bench.store import LOGS, Store
from acclimate.bench.workers import WorkerProcess, end_all, share_threads
from acclimate.errors import BadInput

# Workers that may end of themselves one after another before they have come to life.
_MOST_STILLBORN = 3
_TAIL = 2000

_MEMORY = (
    "If memory ran short, take fewer --workers or smaller batches. Run the suite again: the job "
    "goes on from its last checkpoint."
)


def run_local(
    store: Store,
    names: Sequence[str],
    setup: Setup,
    on_event: OnEvent,
    *,
    n_workers: int = 1,
    retries: int = 1,
) -> None:
    """Run jobs in processes of their own; see `acclimate.bench.run_suite`.

    Args:
        store: Where the suite is kept.
        names: Of the folders of the jobs to run.
        setup: What they have in common.
        on_event: Is told what happens.
        n_workers: Processes.
        retries: How often a job is taken up again after the process that ran it has died.
    """
    if n_workers < 1:
        raise BadInput(f"expected at least 1 worker, found {n_workers}.")
    crew = _Crew(store, names, setup, on_event, min(n_workers, len(names)), retries)
    try:
        crew.run()
    finally:
        end_all(crew.workers)


class _Crew:
    """The workers, and what is left for them to do."""

    def __init__(
        self,
        store: Store,
        names: Sequence[str],
        setup: Setup,
        on_event: OnEvent,
        n_workers: int,
        retries: int,
    ) -> None:
        self.workers: list[WorkerProcess] = []
        self._store, self._setup, self._on_event = store, setup, on_event
        self._jobs = store.jobs()
        self._left = list(names)
        self._not_before: dict[str, float] = {}  # of jobs that another process works on
        self._n_workers, self._retries = n_workers, retries
        self._n_threads = share_threads(n_workers)
        self._heard: queue.Queue[tuple[WorkerProcess, dict[str, Any] | None]] = queue.Queue()
        self._deaths: Counter[str] = Counter()
        self._n_stillborn = 0
        self._log = store.root / LOGS / "workers.log"
        self._log.parent.mkdir(exist_ok=True)

    def run(self) -> None:
        """Return when every job is done or has failed."""
        while self._left or any(worker.job for worker in self.workers):
            self._assign()
            try:
                worker, message = self._heard.get(timeout=LOOK_EVERY)
            except queue.Empty:
                # A process that a dead worker has started may keep its output open.
                for worker in [own for own in self.workers if own.process.poll() is not None]:
                    self._bury(worker)
                continue
            if message is not None:
                self._take(worker, message)
            elif worker in self.workers:
                self._bury(worker)

    def _assign(self) -> None:
        """Give every idle worker a job, as long as there are any."""
        now = time.monotonic()
        for name in [name for name in self._left if self._not_before.get(name, 0) <= now]:
            if name in self._not_before and self._store.folder(name).is_done:
                self._left.remove(name)
                self._tell("finished", name)
        while True:
            free = [name for name in self._left if self._not_before.get(name, 0) <= now]
            idle = [worker for worker in self.workers if worker.job is None]
            if not free or (not idle and len(self.workers) >= self._n_workers):
                return
            worker = idle[0] if idle else self._hire()
            name = min(free, key=lambda name: self._rank(name, worker))
            self._left.remove(name)
            spec = self._jobs[name].spec.to_dict()
            worker.begin(name, spec, self._store.folder(name).path)

    def _hire(self) -> WorkerProcess:
        worker = WorkerProcess(self._setup.to_dict(), self._n_threads, self._heard, self._log)
        self.workers.append(worker)
        return worker

    def _rank(self, name: str, worker: WorkerProcess) -> tuple[bool, int, int]:
        """Return a key that is smallest for the job that suits the worker best."""
        spec = self._jobs[name].spec
        others = [self._jobs[w.job].spec for w in self.workers if w.job and w is not worker]
        key = spec.artifact_key
        # It would only wait for what another one is preparing.
        waits = (
            key is not None
            and any(other.artifact_key == key for other in others)
            and not (self._setup.artifacts / f"{key}.acclimate").is_file()
        )
        n_same = 0
        if worker.last is not None:
            pairs = zip(_needs(spec), _needs(self._jobs[worker.last].spec), strict=True)
            n_same = sum(own == other for own, other in pairs)
        return waits, -n_same, self._left.index(name)

    def _take(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
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

    def _bury(self, worker: WorkerProcess) -> None:
        """Go on without a worker that has ended; its job is taken up again, or given up."""
        self.workers.remove(worker)
        how, name = worker.describe_end(), worker.job
        end_all([worker])
        if not worker.is_ready and worker.process.returncode > 0:
            self._n_stillborn += 1
            if self._n_stillborn >= _MOST_STILLBORN:
                said = self._log.read_text(errors="replace")[-_TAIL:].strip()
                raise BadInput(f"no worker could be started: it {how}. It said:\n{said}")
        elif name is not None:
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
            message = f"the process that ran the job {how} (try {self._deaths[name]})"
            with folder.hold() as is_mine:
                if is_mine:  # else another process has taken it up
                    folder.fail("WorkerDied", f"{message}.", _MEMORY)
            self._tell("failed", name, text=f"WorkerDied: {message}.")

    def _tell(self, kind: Any, name: str, done: int = 0, total: int = 0, text: str = "") -> None:
        self._on_event(Event(kind, name, self._jobs[name], done, total, text))


def _needs(spec: JobSpec) -> tuple[Any, ...]:
    """Return what a worker keeps from one job to the next."""
    return (
        (spec.model, spec.weights),
        (spec.data, spec.corruptions, spec.severities, spec.images),
        spec.artifact_key,
    )
