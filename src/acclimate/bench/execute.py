"""Run jobs from wherever they were interrupted to their end.

Jobs on the same stream run side by side: each batch is read once and given to one job after the
other. Whatever else the machine does then slows all of them alike, so that their times can be
compared. A single job is run in the same way.
"""

from __future__ import annotations

import math
import shutil
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from acclimate.bench.job import JobSpec
from acclimate.bench.load import Job, Loader, refuse_methods
from acclimate.bench.protocol import Unit
from acclimate.bench.provenance import (
    RunLog,
    code_sha256,
    describe_job,
    describe_origin,
    describe_settings,
    describe_stream,
    file_sha256,
    forget_peak,
)
from acclimate.bench.run_folder import (
    BEGUN,
    LOCK,
    N_THREADS,
    RECORDS,
    RESULT,
    Checkpoint,
    RunFolder,
    check_start,
    read_record,
)
from acclimate.bench.suite import ARTIFACTS, JOBS, SUITE, SUITES, Entry, Outcome, Store, Suite
from acclimate.errors import (
    AcclimateError,
    AcclimateWarning,
    ArtifactError,
    BadInput,
    CorruptFile,
    UnsuitableModel,
)
from acclimate.evaluation import Collector, Record, Result, iter_evaluate
from acclimate.introspect import inspect_model
from acclimate.metrics import BatchMetrics, MetricsWriter, pack_sums, unpack_sums
from acclimate.metrics.result import merge
from acclimate.progress import Progress
from acclimate.storage import digest, write_atomically
from acclimate.streams import Batch

# Seconds between two checkpoints; they may take a fiftieth of the time, however large the model.
_CHECKPOINT_SECONDS, _LONGEST_SHARE = 20.0, 0.02
# The call that warms up needs the shape of the images, not a whole batch.
_WARM_UP = 16


class Stopped(Exception):
    """The job was asked to stop, and can be resumed."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How and where jobs are run; none of it is part of a job's key.

    Attributes:
        artifacts: The folder of prepared artifacts; absolute, as other processes are given it.
        device: `auto`, `cpu`, `cuda` or `mps`.
        checkpoint_every: Batches between two checkpoints within a unit; None for about 20 seconds,
            or more where checkpoints take long.
        command: What was typed, for the provenance.
    """

    artifacts: Path = Path(ARTIFACTS)
    device: str = "auto"
    checkpoint_every: int | None = None
    command: str = ""


def _ignore(*arguments: Any) -> None:
    """Do nothing."""


def execute(
    jobs: Sequence[Job],
    folders: Sequence[RunFolder],
    options: RunOptions | None = None,
    *,
    on_batch: Callable[[int, int], None] = _ignore,
    on_record: Callable[[Job, Record], None] = _ignore,
    should_stop: Callable[[], bool] = lambda: False,
    log: RunLog | None = None,
) -> list[Result]:
    """Run jobs on the same stream side by side, each from where it was interrupted.

    Args:
        jobs: They share data, protocol and seed; anything else may differ.
        folders: One for each job.
        options: When to write checkpoints.
        on_batch: Called when jobs begin or continue, and after every batch of every job, with the
            number of batches done and to do of all jobs together.
        on_record: Called with a job and each of its records, first with those of an earlier run.
        should_stop: Asked after every batch; if it returns true, checkpoints are written.
        log: What was spent and warned of before; see `collect_warnings`.

    Raises:
        Stopped: They were asked to stop.
    """
    how, log = options or RunOptions(), log or RunLog()
    units = jobs[0].units()
    n_batches = sum(unit.n_batches for unit in units)
    runs = [_Run(job, own, n_batches, log) for job, own in zip(jobs, folders, strict=True)]
    n_done, n_all = sum(len(run.records) for run in runs), n_batches * len(runs)
    for run in runs:
        for record in run.records:
            on_record(run.job, record)
    on_batch(n_done, n_all)
    clock = _Clock(how.checkpoint_every, log)
    with use_threads(runs[0].n_threads):
        first = next(iter(units[0].batches))
        for run in runs:
            run.wrap(first)
        log.note("wrapping")
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
                    on_record(run.job, run.step(fed[run.job.form], offset + number))
                    n_done += 1
                    on_batch(n_done, n_all)
                stops = should_stop()
                # At the end of a unit there is nothing to keep: the next one starts with a reset.
                if stops or (number + 1 < unit.n_batches and clock.is_due(number + 1)):
                    clock.write(reached)
                if stops:
                    raise Stopped
            for run in active:
                run.leave()
            offset += unit.n_batches
        return [run.finish(how.command, len(runs) > 1) for run in runs]


class _Clock:
    """Decides when checkpoints are written."""

    def __init__(self, every: int | None, log: RunLog) -> None:
        self._every, self._log = every, log
        self._due = time.monotonic() + _CHECKPOINT_SECONDS

    def is_due(self, n_done: int) -> bool:
        if self._every is not None:
            return n_done % self._every == 0
        return time.monotonic() >= self._due

    def write(self, runs: Sequence[_Run]) -> None:
        start = time.monotonic()
        for run in runs:
            run.checkpoint()
        now = time.monotonic()
        self._log.checkpoints += now - start
        self._due = now + max(_CHECKPOINT_SECONDS, (now - start) / _LONGEST_SHARE)


class _Run:
    """One job at work: where it is, and what it has recorded."""

    def __init__(self, job: Job, folder: RunFolder, n_batches: int, log: RunLog) -> None:
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
        self._log, self._warnings = log, list(log.warnings)
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
            write_atomically(self._folder.path / name, save(self._gather()))
        self._folder.close_unit(self._unit.name, pack_sums(self._collector.sums))
        self._sums += self._collector.sums.items()

    def finish(self, command: str, side_by_side: bool) -> Result:
        """Write the result."""
        result = Result(tuple(self.records), merge(self._sums))
        origin = describe_job(self.job, self._adapted, command)
        origin |= {N_THREADS: self.n_threads, "n_batches": len(self.records)}
        origin |= {"seconds": self._log.sum_up(result), "warnings": self._warnings}
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
        others, self._log.warnings = self._log.warnings, self._warnings
        is_same = torch.get_num_threads() == self.n_threads
        try:
            with nullcontext() if is_same else use_threads(self.n_threads):
                yield
        finally:
            self._log.warnings = others

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
def collect_warnings(passes_on: bool = False) -> Iterator[RunLog]:
    """Collect the package's own warnings, which belong to results; `passes_on` shows them, too."""
    log, shown = RunLog(), set[str]()
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            text = str(message)
            if not issubclass(category, AcclimateWarning):
                usual(message, category, *where, **more)
                return
            if text not in log.warnings:
                log.warnings.append(text)
            if passes_on and text not in shown:
                shown.add(text)
                usual(message, category, *where, **more)

        warnings.simplefilter("always", AcclimateWarning)
        warnings.showwarning = show
        yield log


# A suite side by side -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """What came out of every method with every seed, and where the numbers come from."""

    outcomes: tuple[Outcome, ...]
    provenance: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary of every run and the provenance as JSON types."""
        return {
            "runs": [
                {"method": own.entry.label, "seed": own.entry.spec.seed, **own.result.to_dict()}
                for own in self.outcomes
            ],
            "provenance": self.provenance,
        }


def check_place(out: str | Path, resume: bool = False, force: bool = False) -> None:
    """Refuse a folder that holds another comparison, which is neither continued nor discarded."""
    folder = Path(out)
    check_start(resume, force)
    if folder.exists() and not folder.is_dir():
        text = f"Cannot write to {folder}: it is a file. Pass a folder with --out."
        raise BadInput("not_a_folder", text, path=folder)
    found = [name for name in (BEGUN, SUITE, RESULT) if (folder / name).exists()]
    if found and not (resume or force):
        raise BadInput(
            "already_exists",
            f"{folder} already contains a comparison ({', '.join(found)}). Pass another "
            "--out, --resume to continue it, or --force to start again.",
            path=folder,
        )


def run_side_by_side(
    suite: Suite,
    out: str | Path,
    loader: Loader,
    *,
    resume: bool = False,
    force: bool = False,
    one_by_one: bool = False,
    options: RunOptions | None = None,
    progress: Progress | None = None,
    metrics: MetricsWriter | None = None,
) -> Comparison:
    """Run the jobs of a suite in this process; those on the same stream side by side.

    Args:
        suite: The jobs.
        out: Folder of the suite.
        loader: Provides models, data and artifacts.
        resume: Continue what the folder holds, if it was started with the same settings.
        force: Discard what it holds.
        one_by_one: Finish one method before the next; then only one copy of the model is held.
        options: When to write checkpoints.
        progress: Called with the stage, the batches done and those to do, of all jobs.
        metrics: Writes the metrics of every batch, also of those that were recorded before.
    """
    check_place(out, resume, force)
    how, root, store = options or RunOptions(), RunFolder(out), Store(out, suite)
    n_before, has_begun = 0, False

    def write(spec: JobSpec, record: Record) -> None:
        if metrics is not None:
            metrics.write(BatchMetrics.of_record(record), method=spec.label, seed=spec.seed)

    def move(done: int, total: int) -> None:
        nonlocal has_begun
        if progress is not None and has_begun:
            progress("measuring (batches)", n_before + done, sum(totals.values()))
        has_begun = True

    with collect_warnings(passes_on=True) as log:
        jobs = _open_all(store.jobs(), loader)
        log.note("loading")
        identity = describe_settings(list(jobs.values()))
        with root.lock(), _withdrawn_if_refused(root, list(jobs)):
            if force:
                _discard(root, list(jobs))
            remedy = "Use the same settings, pass another --out, or start again with --force."
            root.check_same(identity, str(root.path), remedy)
            root.write(BEGUN, identity)
            Store.create(out, suite)
            totals = {name: sum(u.n_batches for u in job.units()) for name, job in jobs.items()}
            if metrics is not None:
                metrics.begin()
            for names in _group(jobs, one_by_one):
                left = [name for name in names if not store.is_done(name)]
                for name in [name for name in names if name not in left]:
                    n_before += totals[name]
                    for record in store.outcome(name).result.records if metrics else ():
                        write(jobs[name].spec, record)
                if not left:
                    continue
                has_begun, own = False, [loader.complete(jobs[name]) for name in left]
                jobs |= zip(left, own, strict=True)
                log.note("artifact")
                with ExitStack() as locks:
                    folders = [store.folder(name) for name in left]
                    for folder, job in zip(folders, own, strict=True):
                        locks.enter_context(folder.lock())
                        folder.describe({"key": job.spec.key, **job.spec.to_dict()})
                    execute(
                        own,
                        folders,
                        how,
                        on_batch=move,
                        on_record=lambda job, record: write(job.spec, record),
                        log=log,
                    )
                n_before += sum(totals[name] for name in left)
            origin = _describe(jobs, identity, how.command)
            origin["side_by_side"] = not one_by_one
            result = Comparison(tuple(store.outcomes()), origin)
            root.write(RESULT, result.to_dict())
    return result


def _open_all(entries: Mapping[str, Entry], loader: Loader) -> dict[str, Job]:
    """Return all jobs, after refusing all methods at once that cannot adapt the model."""
    jobs: dict[str, Job] = {}
    refused: dict[str, str] = {}
    for name, entry in entries.items():
        try:
            jobs[name] = loader.open(entry.spec)
        except UnsuitableModel as error:
            if error.code != "method_refused":
                raise
            refused |= error.data["reasons"]
    if refused:
        raise refuse_methods(refused)
    return jobs


def _group(jobs: Mapping[str, Job], one_by_one: bool) -> list[list[str]]:
    """Return the names of the jobs that run side by side: those on the same stream."""
    groups: dict[Any, list[str]] = {}
    for name, job in jobs.items():
        spec = job.spec
        stream = (spec.data_key, str(spec.get_protocol().to_dict()), spec.seed)
        groups.setdefault(name if one_by_one else stream, []).append(name)
    return list(groups.values())


@contextmanager
def _withdrawn_if_refused(root: RunFolder, names: Sequence[str]) -> Iterator[None]:
    """Leave nothing behind of a call that is refused before its first record.

    Otherwise the next attempt would be taken for another comparison.
    """
    is_new = not any((root.path / name).exists() for name in (BEGUN, SUITE, RESULT))
    try:
        yield
    except AcclimateError:
        if is_new and not any((root.path / name / RECORDS).is_file() for name in names):
            _discard(root, names)
            (root.path / LOCK).unlink(missing_ok=True)
            if not any(root.path.iterdir()):
                root.path.rmdir()
        raise


def _discard(root: RunFolder, names: Sequence[str]) -> None:
    """Remove what a comparison has written into its folder; jobs of other suites stay."""
    kept: set[str] = set()
    if (root.path / SUITE).is_file():
        last = Store(root.path)
        names = [*names, *last.jobs()]
        for title in last.list_suites():
            other = Store(root.path, title)
            if title == last.suite.title:
                other.remove_list()
            else:
                kept |= set(other.jobs())
    for name in names:
        if name not in kept:
            shutil.rmtree(root.path / name, ignore_errors=True)
    for file in (BEGUN, SUITE, RESULT):
        (root.path / file).unlink(missing_ok=True)
    for folder in (JOBS, SUITES):
        path = root.path / folder
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    if not (root.path / JOBS).exists():
        shutil.rmtree(root.path / ARTIFACTS, ignore_errors=True)


def _describe(jobs: Mapping[str, Job], identity: Mapping[str, Any], command: str) -> dict[str, Any]:
    first = next(iter(jobs.values()))
    spec, file = first.spec, first.spec.weights
    return {
        **describe_origin(command, first.device),
        "model": spec.model_name,
        "weights": None if file is None else {"file": file, "sha256": file_sha256(file)},
        **describe_stream(first),
        "settings": dict(identity),
        "artifact_sha256": {
            job.spec.label: digest(job.artifact.tensors)
            for job in jobs.values()
            if job.artifact is not None
        },
        "n_threads": torch.get_num_threads(),
    }
