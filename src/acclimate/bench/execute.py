"""Run jobs from wherever they were interrupted to their end.

Jobs on the same stream run side by side: each batch is read once and given to one job after the
other. Whatever else the machine does then slows all of them alike, so that their times can be
compared. A single job is run in the same way.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from acclimate.bench.job import JobSpec
from acclimate.bench.load import Job, Loader
from acclimate.bench.protocol import Unit
from acclimate.bench.provenance import (
    Timings,
    code_sha256,
    describe_job,
    describe_settings,
    forget_peak,
)
from acclimate.bench.run_folder import N_THREADS, Checkpoint, RunFolder
from acclimate.errors import AcclimateWarning, ArtifactError, CorruptFile
from acclimate.evaluation import Collector, Record, Result, iter_evaluate
from acclimate.introspect import inspect_model
from acclimate.metrics import pack_sums, unpack_sums
from acclimate.metrics.result import merge
from acclimate.streams import Batch

#: Called with the batches done and those of the whole job; what it raises ends the work.
OnBatch = Callable[[int, int], None]
#: Called with a job and each of its records, also those of an earlier run.
OnRecord = Callable[[Job, Record], None]

# A checkpoint may take a fiftieth of the time, however large the model and slow the disk.
_LONGEST_SHARE = 0.02
# The call that warms up needs the shape of the images, not a whole batch.
_WARM_UP = 16


class Stopped(Exception):
    """The job was asked to stop, and can be resumed."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How jobs are run, which changes no number.

    Attributes:
        checkpoint_every: Batches between two checkpoints within a unit; None for a time.
        checkpoint_seconds: That time, at least; longer where checkpoints take long.
        command: What was typed, for the provenance.
    """

    checkpoint_every: int | None = None
    checkpoint_seconds: float = 20.0
    command: str = ""


@dataclass
class Warned:
    """Warnings of this package, which belong to results; the next ones are added to `texts`."""

    texts: list[str] = field(default_factory=list)


def run_job(
    spec: JobSpec,
    loader: Loader,
    folder: RunFolder,
    options: RunOptions | None = None,
    on_batch: OnBatch | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> None:
    """Load and run one job; see `execute`."""
    timings = Timings()
    with collect_warnings() as warned:
        job = loader.load(spec, timings)
        how: dict[str, Any] = {"on_batch": on_batch, "should_stop": should_stop}
        execute([job], [folder], options, timings=timings, warned=warned, **how)


def execute(
    jobs: Sequence[Job],
    folders: Sequence[RunFolder],
    options: RunOptions | None = None,
    *,
    on_batch: OnBatch | None = None,
    on_record: OnRecord | None = None,
    should_stop: Callable[[], bool] | None = None,
    timings: Timings | None = None,
    warned: Warned | None = None,
) -> list[Result]:
    """Run jobs on the same stream side by side, each from where it was interrupted.

    Args:
        jobs: They share data, protocol and seed; anything else may differ.
        folders: One for each job.
        options: When to write checkpoints.
        on_batch: Called when jobs begin or continue, and after every batch of every job, with the
            number of batches done and to do of all jobs together.
        on_record: Called with every record, first with those of an earlier run.
        should_stop: Asked after every batch; if it returns true, checkpoints are written.
        timings: What was spent before.
        warned: Where warnings are collected.

    Raises:
        Stopped: They were asked to stop.
    """
    how, warned, timings = options or RunOptions(), warned or Warned(), timings or Timings()
    units = jobs[0].units()
    n_batches = sum(unit.n_batches for unit in units)
    runs = [_Run(job, own, n_batches, warned) for job, own in zip(jobs, folders, strict=True)]
    n_done, n_all = sum(len(run.records) for run in runs), n_batches * len(runs)
    if on_record is not None:
        for run in runs:
            for record in run.records:
                on_record(run.job, record)
    if on_batch is not None:
        on_batch(n_done, n_all)
    clock = _Clock(how, timings)

    def count(run: _Run, record: Record) -> None:
        nonlocal n_done
        n_done += 1
        if on_record is not None:
            on_record(run.job, record)
        if on_batch is not None:
            on_batch(n_done, n_all)

    with use_threads(runs[0].n_threads):
        first = next(iter(units[0].batches))
        for run in runs:
            run.wrap(first)
        timings.note("wrapping")
        forget_peak()
        offset = 0
        for place, unit in enumerate(units):
            active = [run for run in runs if run.enter(unit, place)]
            start = min((run.n_done for run in active), default=unit.n_batches)
            batches = islice(iter(unit.batches), start, None) if start < unit.n_batches else ()
            for number, batch in enumerate(batches, start):
                reached = [run for run in active if run.n_done == number]
                fed: dict[Any, Batch] = {}
                for run in reached:
                    if run.job.form not in fed:
                        fed[run.job.form] = run.job.feed(batch)
                    count(run, run.step(fed[run.job.form], offset + number))
                stops = should_stop is not None and should_stop()
                # At the end of a unit there is nothing to keep: the next one starts with a reset.
                if stops or (number + 1 < unit.n_batches and clock.is_due(number + 1)):
                    clock.write(reached)
                if stops:
                    raise Stopped
            for run in active:
                run.leave()
            offset += unit.n_batches
        return [run.finish(how.command, timings, len(runs) > 1) for run in runs]


class _Clock:
    """Decides when checkpoints are written."""

    def __init__(self, options: RunOptions, timings: Timings) -> None:
        self._options, self._timings = options, timings
        self._due = time.monotonic() + options.checkpoint_seconds

    def is_due(self, n_done: int) -> bool:
        if self._options.checkpoint_every is not None:
            return n_done % self._options.checkpoint_every == 0
        return time.monotonic() >= self._due

    def write(self, runs: Sequence[_Run]) -> None:
        start = time.monotonic()
        for run in runs:
            run.checkpoint()
        took = time.monotonic() - start
        self._timings.checkpoints += took
        wait = max(self._options.checkpoint_seconds, took / _LONGEST_SHARE)
        self._due = time.monotonic() + wait


class _Run:
    """One job at work: where it is, and what it has recorded."""

    def __init__(self, job: Job, folder: RunFolder, n_batches: int, warned: Warned) -> None:
        self.job, self._folder = job, folder
        identity: dict[str, Any] = {"key": job.spec.key, "n_batches": n_batches}
        identity |= {N_THREADS: torch.get_num_threads(), "code_sha256": code_sha256()}
        if job.spec.keep:
            identity["keep"] = dict(job.spec.keep)
        self._resume = folder.begin({**identity, **describe_settings([job])})
        self.n_threads = self._resume.n_threads
        self.records = [read_record(line) for line in self._resume.records]
        self.n_done = 0
        packed = self._resume.sums.values()
        self._sums = [pair for own in packed for pair in unpack_sums(own).items()]
        self._warned, self._texts = warned, list(warned.texts)
        self._kept: list[str] = []

    def wrap(self, first: Batch) -> None:
        """Wrap the model, and make the first call of all, which is slow, and undo it."""
        job = self.job
        with self._at_work():
            batch = job.feed(first)
            n = max(_WARM_UP, len(batch.x) // 8)
            if "features" in job.spec.keep and job.info.head is None and job.artifact is None:
                head = inspect_model(job.model, batch.x[:2]).head
                job = replace(job, info=replace(job.info, head=head))
            adapted = self._adapted = job.wrap()
            if adapted.card.is_oracle and job.spec.reveal_labels:
                adapted.reveal(batch.y[:n])
            with nullcontext() if batch.learns else adapted.paused():
                adapted(batch.x[:n])
            adapted.reset()

    def enter(self, unit: Unit, place: int) -> bool:
        """Go to a unit, to where the run was interrupted in it; return False if it is done."""
        self._unit, self._place, self._tail = unit, place, deque[tuple[Tensor, Tensor]]()
        wanted = self.job.spec.keep
        # Between checkpoint and end nothing may be missing of what is kept.
        n_last = math.ceil(max(wanted.values(), default=0) / self.job.protocol.batch_size)
        self._first_kept = unit.n_batches - n_last - 1 if wanted else unit.n_batches
        if "predictions" in wanted or ("features" in wanted and place == 0):
            self._kept.append(kept_name(place))
        if unit.name in self._resume.sums:
            return False
        self.n_done, self._collector = 0, Collector()
        known, state = self._resume.checkpoint, self._resume.state
        if known is not None and known.unit == unit.name and state is not None:
            self._load(state)
            self.n_done, self._collector.sums = known.n_batches, unpack_sums(known.sums)
        self._inbox: deque[Batch] = deque()
        self._found = iter_evaluate(
            self._adapted,
            iter(self._inbox.popleft, None),
            collector=self._collector,
            reveal_labels=self.job.spec.reveal_labels,
        )
        return True

    def step(self, batch: Batch, index: int) -> Record:
        """Measure the method on one batch; the record is with the writer when this returns."""
        self._inbox.append(batch)
        with self._at_work():
            found = next(self._found)
        if "predictions" in self.job.spec.keep and found.predictions is not None:
            labels = batch.y[-len(found.predictions) :]
            if self.n_done >= self._first_kept:
                self._tail.append((found.predictions, labels))
        record = replace(found, index=index, predictions=None)
        self._folder.append(self._unit.name, record.to_dict())
        self.records.append(record)
        self.n_done += 1
        return record

    def checkpoint(self) -> None:
        """Keep the place and the state of the method, unless what is kept would be cut in two."""
        if self.n_done <= self._first_kept or "predictions" not in self.job.spec.keep:
            place = Checkpoint(self._unit.name, self.n_done, pack_sums(self._collector.sums))
            self._folder.checkpoint(place, self._adapted.save)

    def leave(self) -> None:
        """Close the unit."""
        if (name := kept_name(self._place)) in self._kept:
            self._folder.keep(name, save(self._gather()))
        self._folder.close_unit(self._unit.name, pack_sums(self._collector.sums))
        self._sums += self._collector.sums.items()

    def finish(self, command: str, timings: Timings, side_by_side: bool) -> Result:
        """Write the result."""
        result = Result(tuple(self.records), merge(self._sums))
        origin = describe_job(self.job, self._adapted, command)
        origin |= {N_THREADS: self.n_threads, "n_batches": len(self.records)}
        origin |= {"seconds": timings.sum_up(result), "warnings": self._texts}
        if side_by_side:
            origin["side_by_side"] = True  # memory is that of all together
        content = {
            "key": self.job.spec.key,
            "n_batches": len(self.records),
            "summary": result.to_dict(),
            "provenance": origin,
        }
        self._folder.finish(content, self._kept)
        return result

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Compute with the threads that the run was begun with, and take its warnings."""
        texts, self._warned.texts = self._warned.texts, self._texts
        is_same = torch.get_num_threads() == self.n_threads
        try:
            with nullcontext() if is_same else use_threads(self.n_threads):
                yield
        finally:
            self._warned.texts = texts

    def _load(self, state: Path) -> None:
        try:
            self._adapted.load(state)
        except ArtifactError as error:
            raise CorruptFile(
                "wrong_content",
                f"The checkpoint cannot be loaded ({error}). Remove the folder {state.parent} and "
                "run the suite again.",
                path=state,
            ) from error

    def _gather(self) -> dict[str, Tensor]:
        """Return what is to be kept of the last images of the unit, with their labels."""
        found: dict[str, Tensor] = {}
        if n := self.job.spec.keep.get("predictions"):
            found["predictions"] = torch.cat([own for own, _ in self._tail])[-n:].contiguous()
            found["labels"] = torch.cat([labels for _, labels in self._tail])[-n:].contiguous()
        if (n := self.job.spec.keep.get("features")) and self._place == 0:
            batches = list(islice(iter(self._unit.batches), max(0, self._first_kept), None))
            with self._at_work(), self._adapted.paused(), torch.no_grad():
                features = [
                    self._adapted.run(self.job.feed(batch).x, moves=False).known_features
                    for batch in batches
                ]
            found["features"] = torch.cat(features)[-n:].float().cpu().contiguous()
            found["labels"] = torch.cat([batch.y for batch in batches])[-n:].contiguous()
        return found


def kept_name(place: int) -> str:
    """Return the name of the file with what a job keeps of a unit."""
    return f"kept-{place}.safetensors"


def read_kept(folder: str | Path, place: int = 0) -> dict[str, Tensor]:
    """Return what a finished job has kept of the last images of a unit, counted from 0.

    These are `predictions` or `features`, whatever the job was asked to keep, and `labels`.
    """
    return load_file(Path(folder) / kept_name(place))


def has_finished(spec: JobSpec, folder: RunFolder) -> bool:
    """Return whether a job is done, and has kept what it is asked to keep."""
    if not (folder.is_done and spec.keep):
        return folder.is_done
    kept = folder.read_result()["provenance"]["spec"].get("keep", {})
    return all(kept.get(name, 0) >= n for name, n in spec.keep.items())


def read_record(line: Mapping[str, Any]) -> Record:
    """Return the record in a line of `records.jsonl`."""
    return Record.from_dict({name: value for name, value in line.items() if name != "unit"})


@contextmanager
def use_threads(n_threads: int) -> Iterator[None]:
    """Compute with so many threads: a sum over parts depends on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def collect_warnings(passes_on: bool = False) -> Iterator[Warned]:
    """Collect the package's own warnings, which belong to results; `passes_on` shows them, too."""
    warned, shown = Warned(), set[str]()
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            text = str(message)
            if not issubclass(category, AcclimateWarning):
                usual(message, category, *where, **more)
                return
            if text not in warned.texts:
                warned.texts.append(text)
            if passes_on and text not in shown:
                shown.add(text)
                usual(message, category, *where, **more)

        warnings.simplefilter("always", AcclimateWarning)
        warnings.showwarning = show
        yield warned
