"""Run the jobs of a suite: in this process, in worker processes, or on a Ray cluster.

`run_suite` gives the jobs that are left to a `Queue`, which begins them on an `Executor`, begins
them again if their process is lost, and reports events. `InProcess` runs jobs in the calling
process, `Processes` in processes of this machine; the executor for Ray is in `acclimate.bench.ray`.
"""

from __future__ import annotations

import importlib
import operator
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import torch

from acclimate import zoo
from acclimate.bench.execute import RunOptions, Stopped, collect_warnings, execute
from acclimate.bench.job import JobSpec
from acclimate.bench.load import Loader
from acclimate.bench.run_folder import ERROR, RunFolder
from acclimate.bench.suite import LOGS, Entry, Outcome, Store, Suite
from acclimate.data import SETS
from acclimate.errors import BadInput, check_at_least, check_name, check_options
from acclimate.process import count_cores, limit_threads, share_threads, tune_process
from acclimate.zoo.segmentation import is_dense_name

#: `found`: done before. `busy`: another process works on it. `stage`: something before measuring.
Kind = Literal[
    "found", "busy", "started", "stage", "progress", "finished", "retried", "failed", "stopped"
]
#: `stopped`: it was asked to, and can be resumed.
End = Literal["finished", "failed", "busy", "stopped"]
#: What happens to a job: the kind of an event, batches done, those of the job, and a text. Also
#: `lost`: its process has ended, and the text says how.
Message = tuple[str, int, int, str]
#: Takes the name of a job and a message on it.
Report = Callable[[str, Message], None]

#: Where the executor of each engine is, and what it takes besides `n_workers`.
ENGINES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "local": ("acclimate.bench.schedule:open_local", ()),
    "ray": ("acclimate.bench.ray:open_ray", ("address", "n_cpus", "n_gpus", "storage")),
}

#: Seconds between two looks at a job that another process works on.
LOOK_EVERY = 0.5
#: Seconds that workers have for their last batch and a checkpoint when they are asked to stop.
PATIENCE = 20.0
#: Seconds between two messages of progress from other processes.
REPORT_EVERY = 0.1
# Workers that may fail to start, one after another.
_MOST_FAILED = 3
# Characters of the log that an error message quotes.
_TAIL = 2000
_MEMORY = (
    "If the machine ran out of memory, use fewer --workers or smaller batches. Run the suite "
    "again to resume the job from its last checkpoint."
)


# Events -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """Something that happened to a job.

    Attributes:
        kind: What.
        name: Folder of the job, relative to that of the suite.
        entry: The job; of several rows that share it, the first.
        done: Batches that are done.
        total: Batches of the job; 0 while that is not known.
        text: The stage, or what went wrong.
    """

    kind: Kind
    name: str
    entry: Entry
    done: int = 0
    total: int = 0
    text: str = ""


OnEvent = Callable[[Event], None]


# A job --------------------------------------------------------------------------------------------


def run_job(
    spec: JobSpec,
    folder: RunFolder,
    loader: Loader,
    options: RunOptions,
    report: Callable[[Message], None],
    should_stop: Callable[[], bool],
    report_every: float = 0.0,
) -> End:
    """Run a job in this process until it ends or should stop; an error is written to its folder.

    `should_stop` is asked after every batch and at every step of a preparation.
    """
    last, reported = "", 0.0

    def report_stage(stage: str, done: int, total: int | None) -> None:
        nonlocal last
        if should_stop():
            raise Stopped
        if stage != last:
            last = stage
            report(("stage", 0, 0, stage))

    def report_progress(done: int, total: int) -> None:
        nonlocal reported
        now = time.monotonic()
        if done == total or now >= reported + report_every:
            reported = now
            report(("progress", done, total, ""))

    folder.make()
    with folder.hold() as is_mine:
        if not is_mine:
            return "busy"
        if folder.has_finished(spec.keep):
            return "finished"
        folder.describe({"key": spec.key, **spec.to_dict()})
        loader.progress = report_stage
        report(("started", 0, 0, ""))
        try:
            with collect_warnings() as log:
                execute(
                    [loader.load(spec, log)],
                    [folder],
                    options,
                    on_batch=report_progress,
                    should_stop=should_stop,
                    log=log,
                )
        except Stopped:
            return "stopped"
        except Exception as error:  # noqa: BLE001  # whatever it is, the other jobs continue
            folder.fail_by(error)
            return "failed"
        finally:
            folder.close()
        return "finished"


# Executors ----------------------------------------------------------------------------------------


class Executor(Protocol):
    """Where jobs run."""

    def capacity(self) -> int:
        """Return how many jobs may run at once now."""

    def begin(self, name: str, spec: JobSpec, folder: RunFolder) -> None:
        """Begin a job; its name is stated with its messages."""

    def wait(self, seconds: float, report: Report) -> None:
        """Report what has happened to jobs; return after the first messages, or after a time."""

    def close(self) -> None:
        """Ask all jobs to write a checkpoint and end; what does not end in time is killed."""


class InProcess:
    """Runs jobs in the calling process."""

    def __init__(self, options: RunOptions, is_interrupted: Callable[[], bool]) -> None:
        self._options, self._is_interrupted = options, is_interrupted
        self._loader = Loader(options.artifacts, options.device)
        self._order: tuple[str, JobSpec, RunFolder] | None = None

    def capacity(self) -> int:
        return 1

    def begin(self, name: str, spec: JobSpec, folder: RunFolder) -> None:
        self._order = name, spec, folder

    def wait(self, seconds: float, report: Report) -> None:
        if self._order is None:
            time.sleep(seconds)
            return
        (name, spec, folder), self._order = self._order, None
        send, asked = partial(report, name), self._is_interrupted
        send((run_job(spec, folder, self._loader, self._options, send, asked), 0, 0, ""))
        if asked():
            raise KeyboardInterrupt

    def close(self) -> None:
        pass


class WorkerProcess:
    """A process of this machine that runs one job at a time, and prints to a log."""

    def __init__(self, options: RunOptions, n_threads: int, log: Path) -> None:
        self.job: str | None = None
        self.needs: Sequence[Any] = ()  # of its last job
        self.has_started = False
        self.channel, theirs = connection.Pipe()
        program = "from acclimate.bench.schedule import serve_jobs; serve_jobs()"
        with theirs, log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **limit_threads(n_threads)},
                pass_fds=[theirs.fileno()],
            )
        self.send(options)

    def send(self, order: Any) -> None:
        """Pass an order on: the options, then jobs, and None to stop."""
        with suppress(OSError):  # if the process has ended, `receive` notices
            self.channel.send(order)

    def receive(self) -> Message | None:
        """Return the next message; None if the process has ended."""
        try:
            message: Message = self.channel.recv()
        except (EOFError, OSError):
            return None
        return message

    def end(self, seconds: float) -> None:
        """Kill it, unless it ends within this time."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.process.kill()
        self.process.wait()
        self.channel.close()


class Processes:
    """Runs jobs in worker processes, among which the cores are divided."""

    def __init__(self, options: RunOptions, n_workers: int, log: Path) -> None:
        log.parent.mkdir(exist_ok=True)
        self._n_workers, self._log = n_workers, log
        self._shared = options, share_threads(n_workers), log
        self._workers: list[WorkerProcess] = []
        self._n_failed = 0

    def capacity(self) -> int:
        return self._n_workers

    def begin(self, name: str, spec: JobSpec, folder: RunFolder) -> None:
        needs = needs_of(spec)
        idle = [worker for worker in self._workers if worker.job is None]
        if not idle:
            idle = [WorkerProcess(*self._shared)]
            self._workers += idle
        worker = max(idle, key=lambda own: sum(map(operator.eq, own.needs, needs)))
        worker.job, worker.needs = name, needs
        worker.send((spec, folder.path.resolve()))

    def wait(self, seconds: float, report: Report) -> None:
        ready = connection.wait([worker.channel for worker in self._workers], seconds)
        for worker in tuple(self._workers):
            if worker.channel in ready:
                message = worker.receive()
            elif worker.process.poll() is None:
                continue
            else:  # what it has started may keep the channel open
                message = None
            name = worker.job
            if message is None:
                self._workers.remove(worker)
                message = "lost", 0, 0, self._describe_end(worker)
            else:
                worker.has_started, self._n_failed = True, 0
                if message[0] in get_args(End):
                    worker.job = None
            if name is not None:
                report(name, message)

    def close(self) -> None:
        deadline = time.monotonic() + PATIENCE
        for worker in self._workers:
            worker.send(None)
        for worker in self._workers:
            worker.end(max(0.0, deadline - time.monotonic()))

    def _describe_end(self, worker: WorkerProcess) -> str:
        code = worker.process.wait()
        killed = f"was terminated by {signal.Signals(-code).name}" if code < 0 else ""
        how = killed or f"exited with code {code}"
        self._n_failed += not worker.has_started
        if self._n_failed >= _MOST_FAILED:
            log_tail = self._log.read_text(errors="replace")[-_TAIL:].strip()
            raise BadInput(
                "worker_failed", f"No worker could be started: it {how}. Its output:\n{log_tail}"
            )
        return how


def serve_jobs() -> None:
    """Run the jobs that come through a channel: the main function of a worker process.

    It writes a checkpoint and ends when the channel is closed, because the other end has ended.
    """
    tune_process()
    # A Ctrl-C reaches all processes of a terminal; the process that started this one decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel: connection.Connection[Any, Any] = connection.Connection(int(sys.argv[1]))
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    should_stop = threading.Event()

    def listen() -> None:
        with suppress(EOFError, OSError):
            while (order := channel.recv()) is not None:
                inbox.put(order)
        should_stop.set()
        inbox.put(None)

    def send(message: Message) -> None:
        with suppress(BrokenPipeError):  # `listen` notices as well
            channel.send(message)

    threading.Thread(target=listen, daemon=True).start()
    options: RunOptions | None = inbox.get()
    if options is None:
        return
    loader = Loader(options.artifacts, options.device)
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.Adam([parameter]).step()  # what torch loads at the first step takes two seconds
    while (order := inbox.get()) is not None and not should_stop.is_set():
        spec, path = order
        asked, folder = should_stop.is_set, RunFolder(path)
        send((run_job(spec, folder, loader, options, send, asked, REPORT_EVERY), 0, 0, ""))


def choose_n_workers() -> int:
    """Return a number of workers with two cores for each, if there are so many."""
    return max(1, count_cores() // 2)


@contextmanager
def open_local(
    store: Store, n_jobs: int, options: RunOptions, *, n_workers: int | None = None
) -> Iterator[Executor]:
    """Give an executor for this machine; see `run_suite`."""
    if n_workers == 0:
        with hold_interrupts() as is_interrupted:
            yield InProcess(options, is_interrupted)
        return
    n = min(n_jobs, choose_n_workers() if n_workers is None else n_workers)
    check_at_least("n_workers", n, 0)
    yield Processes(options, n, store.root / LOGS / "workers.log")


@contextmanager
def hold_interrupts() -> Iterator[Callable[[], bool]]:
    """Delay a Ctrl-C until the end of the batch and a checkpoint; a second one is not delayed.

    Gives a function that returns whether there was one. Programs may handle interruptions
    themselves.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    asked = threading.Event()

    def note(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# The suite ----------------------------------------------------------------------------------------


@dataclass
class Queue:
    """The jobs that are left: begins them, and begins them again if their process is lost."""

    store: Store
    left: list[str]
    artifacts: Path
    on_event: OnEvent
    executor: Executor
    retries: int

    def __post_init__(self) -> None:
        self._jobs = self.store.jobs()
        self.left = _sort_by_needs(self.left, self._jobs)
        self._running: dict[str, set[str]] = {}  # the kinds of messages on each
        self._not_before: dict[str, float] = {}  # of jobs that another process works on
        self._losses: Counter[str] = Counter()

    def run(self) -> None:
        """Return when every job is done or has failed; the executor is closed then."""
        try:
            while self.left or self._running:
                self._begin()
                self.executor.wait(LOOK_EVERY, self._take)
        finally:
            self.executor.close()

    def _begin(self) -> None:
        """Begin as many jobs as the executor has room for."""
        now, capacity = time.monotonic(), self.executor.capacity()
        for name in tuple(self.left):
            is_due = self._not_before.get(name, 0.0) <= now
            if name in self._not_before and is_due and self.store.is_done(name):
                self.left.remove(name)
                self._tell("finished", name)
            elif is_due and len(self._running) < capacity and not self._must_wait(name):
                self.left.remove(name)
                self._running[name] = set()
                self.executor.begin(name, self._jobs[name].spec, self.store.folder(name))

    def _must_wait(self, name: str) -> bool:
        """Return whether a job needs an artifact that another one prepares now."""
        begun = [own for own, kinds in self._running.items() if "progress" not in kinds]
        others = {key for own in begun for key in self._jobs[own].spec.get_pieces()}
        shared = others.intersection(self._jobs[name].spec.get_pieces())
        return any(not (self.artifacts / f"{key}.acclimate").is_file() for key in shared)

    def _take(self, name: str, message: Message) -> None:
        kind, done, total, text = message
        if kind in (*get_args(End), "lost"):
            kinds = self._running.pop(name)
            if kind == "lost":
                self._lose(name, text, "started" in kinds)
                return
        else:
            self._running[name].add(kind)
        if kind in ("busy", "stopped"):
            self.left.append(name)
            self._not_before[name] = time.monotonic() + LOOK_EVERY
        if kind == "failed":
            error = self.store.folder(name).read(ERROR) or {}
            text = f"{error.get('type', 'error')}: {error.get('message', 'unknown')}"
        self._tell(kind, name, done, total, text)

    def _lose(self, name: str, how: str, has_started: bool) -> None:
        """Begin a job again whose process was lost, or give it up."""
        self._losses[name] += has_started  # otherwise it cannot be the reason
        folder = self.store.folder(name)
        if self.store.is_done(name):
            self._tell("finished", name)
        elif self._losses[name] <= self.retries:
            self.left.insert(0, name)
            self._tell("retried", name, text=f"its process {how}")
        else:
            message = f"The process that ran the job {how} (attempt {self._losses[name]})"
            folder.make()
            with folder.hold() as is_mine:
                if is_mine:  # otherwise another process works on it
                    folder.fail("WorkerDied", f"{message}.", _MEMORY)
            self._tell("failed", name, text=f"WorkerDied: {message}.")

    def _tell(self, kind: Any, name: str, done: int = 0, total: int = 0, text: str = "") -> None:
        self.on_event(Event(kind, name, self._jobs[name], done, total, text))


def needs_of(spec: JobSpec) -> tuple[Any, ...]:
    """Return what a process keeps from one job to the next."""
    return (spec.model, spec.weights), spec.data_key, spec.artifact_key


def _sort_by_needs(names: Sequence[str], jobs: Mapping[str, Entry]) -> list[str]:
    """Return jobs in an order in which those that need the same follow each other."""
    first: dict[Any, int] = {}
    keys = {}
    for place, name in enumerate(names):
        needs = needs_of(jobs[name].spec)
        keys[name] = [first.setdefault(needs[:n], place) for n in (1, 2, 3)]
    return sorted(names, key=keys.__getitem__)


def run_suite(
    suite: Suite,
    out: str | Path,
    *,
    engine: str = "local",
    n_workers: int | None = None,
    retries: int = 1,
    on_event: OnEvent | None = None,
    device: str = "auto",
    artifacts: str | Path | None = None,
    checkpoint_every: int | None = None,
    command: str | None = None,
    **options: Any,
) -> list[Outcome]:
    """Run all jobs of a suite that are not done yet; return the outcomes of those that are.

    The same call resumes a run that was interrupted: jobs that are done are not run again, others
    are resumed from their last checkpoint, with the same records as without the interruption.
    Several processes may run the same suite in one folder at once; they share the work.

    A job that fails does not stop the others: it is missing in what is returned, and
    `Store(out).statuses()` has its error.

    Args:
        suite: The jobs.
        out: Folder of the suite; see `acclimate.bench.Store`.
        engine: A name in `ENGINES`.
        n_workers: Processes; None for half the cores, or for all of a cluster. 0 runs all jobs in
            this process (engine `local` only).
        retries: How often a job is tried again after the process that ran it was lost.
        on_event: Called with each event; an exception that it raises ends the run.
        device: `auto`, `cpu`, `cuda` or `mps`.
        artifacts: Folder of prepared artifacts, which suites may share; in `out` by default.
        checkpoint_every: Batches between two checkpoints; None for about 20 seconds.
        command: What was typed, for the provenance; by default the arguments of this process.
        **options: More options of the engine; see `acclimate.bench.ray.open_ray`.
    """
    check_name(engine, ENGINES, "engine")
    place, known = ENGINES[engine]
    check_options(options, known, f"The engine {engine}", BadInput)
    if checkpoint_every is not None:
        check_at_least("checkpoint_every", checkpoint_every, 1)
    check_at_least("retries", retries, 0)
    report: OnEvent = (lambda event: None) if on_event is None else on_event
    asked = Store(out, suite)
    for name, entry in asked.jobs().items():
        if not asked.is_done(name):
            _check_job(entry.spec)
            if engine != "local" or n_workers != 0:
                entry.spec.check_portable()
    store = Store.create(out, suite)
    prepared = (store.artifacts if artifacts is None else Path(artifacts)).resolve()
    typed = shlex.join(sys.argv) if command is None else command
    jobs = store.jobs()
    done = [name for name in jobs if store.is_done(name)]
    for name in done:
        store.folder(name).remove_leftovers()  # of a process killed right after it was done
        report(Event("found", name, jobs[name]))
    if left := [name for name in jobs if name not in done]:
        module, _, function = place.partition(":")
        open_executor: Callable[..., AbstractContextManager[Executor]]
        open_executor = getattr(importlib.import_module(module), function)
        how = RunOptions(
            artifacts=prepared, device=device, checkpoint_every=checkpoint_every, command=typed
        )
        with open_executor(store, len(left), how, n_workers=n_workers, **options) as executor:
            Queue(store, left, prepared, report, executor, retries).run()
    return store.outcomes()


def _check_job(spec: JobSpec) -> None:
    """Refuse a job whose model or data is misspelt, before anything is started for it."""
    name = spec.model if isinstance(spec.model, str) else "builtin"
    if ":" not in name and name != "builtin" and not is_dense_name(name):
        zoo.get_spec(name)
    for data in (spec.data, spec.prepare.source or spec.data):
        if not Path(data).is_dir():
            check_name(data, SETS, "data set")
