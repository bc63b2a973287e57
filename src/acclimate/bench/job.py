"""Run one job from wherever it was cut to its end."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from acclimate.artifact import Artifact
from acclimate.bench.hashes import code_sha256
from acclimate.bench.materials import Materials
from acclimate.bench.origin import Spent, describe_origin, forget_peak
from acclimate.bench.sink import N_THREADS, Known, Place, Sink
from acclimate.bench.spec import JobSpec
from acclimate.comparison import Job, Unit, check_job
from acclimate.comparison.run import feed, wrap
from acclimate.errors import AcclimateWarning, ArtifactError, BadInput, CorruptFile
from acclimate.evaluation import Collector, Record, Result, iter_evaluate
from acclimate.functional.pixels import IGNORE_LABEL
from acclimate.methods.method import Method
from acclimate.metrics import pack_sums, unpack_sums
from acclimate.metrics.groups import merge
from acclimate.streams import Batch
from acclimate.zoo.named import find_classes

#: Is told the batches done and those of the whole job; what it raises ends the work.
OnBatch = Callable[[int, int], None]

# A checkpoint may take a fiftieth of the time, however large the model and slow the disk.
_LONGEST_SHARE = 0.02
# The call that warms up needs the shape of the images, not all of a batch.
_WARM_UP = 16


class Stopped(Exception):
    """The job was asked to stop, and can go on from where it is."""


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a job is run; nothing of this changes what comes out.

    Attributes:
        checkpoint_every: Batches between two checkpoints; None for a time.
        checkpoint_seconds: That time, at least.
        command: What was typed, for the provenance.
    """

    checkpoint_every: int | None = None
    checkpoint_seconds: float = 20.0
    command: str = ""


def run_job(
    spec: JobSpec,
    materials: Materials,
    sink: Sink,
    manner: Manner | None = None,
    on_batch: OnBatch | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> None:
    """Run a job; all that comes out goes to the sink.

    Args:
        spec: The job.
        materials: Where its model, data and artifact come from.
        sink: Knows what was measured before, and takes what is measured now.
        manner: When to write checkpoints.
        on_batch: Called when it begins or goes on, and after every batch.
        should_stop: Asked after every batch; if so, a checkpoint is written.

    Raises:
        Stopped: It was asked to.
    """
    with _collect_warnings() as warned:
        result = _run(spec, materials, sink, manner or Manner(), on_batch, should_stop)
    result["provenance"]["warnings"] = warned
    sink.finish(result)


def _run(
    spec: JobSpec,
    materials: Materials,
    sink: Sink,
    how: Manner,
    on_batch: OnBatch | None,
    should_stop: Callable[[], bool] | None,
) -> dict[str, Any]:
    """Return what came out of a job."""
    spent = Spent()
    job = load_job(spec, materials, spent)
    (config,) = job.methods.values()
    clean = job.clean
    units = job.protocol.units(job.data.groups, clean, spec.seed)
    n_batches = sum(unit.n_batches for unit in units)
    setting: dict[str, Any] = {"key": spec.key, "n_batches": n_batches}
    setting |= {N_THREADS: torch.get_num_threads(), "code_sha256": code_sha256()}
    known = sink.begin({**setting, **job.settings()})
    if on_batch is not None:
        on_batch(len(known.records), n_batches)
    with _use_threads(known.n_threads):
        adapted = wrap(
            job.model, spec.method, config, job.wrapping, spec.seed, terms=spec.get_terms()
        )
        first = next(feed(units[0].batches, job.model, job.wrapping))
        _warm_up(adapted, first, spec.reveal_labels)
        spent.note("wrapping")
        forget_peak()
        course = _Course(job, adapted, known, sink, how, spent)
        for record in course.run(units):
            if on_batch is not None:
                on_batch(record.index + 1, n_batches)
            if should_stop is not None and should_stop():
                course.checkpoint()
                raise Stopped
        result = Result(tuple(course.records), merge(course.sums))
        origin = describe_origin(spec, job, adapted, clean, how.command, materials.list_files(spec))
        origin |= {N_THREADS: known.n_threads, "n_batches": len(course.records)}
        origin["seconds"] = spent.sum_up(result)
    return {
        "key": spec.key,
        "n_batches": len(course.records),
        "summary": result.to_dict(),
        "provenance": origin,
    }


class _Course:
    """The measuring itself: unit after unit, with checkpoints on the way."""

    def __init__(
        self, job: Job, adapted: Method, known: Known, sink: Sink, how: Manner, spent: Spent
    ) -> None:
        self.records: list[Record] = known.records
        packed = known.sums.values()
        self.sums = [pair for own in packed for pair in unpack_sums(own).items()]
        self._job, self._adapted, self._known = job, adapted, known
        self._sink, self._how, self._spent = sink, how, spent
        self._unit, self._n_done, self._collector = "", 0, Collector()
        self._due = time.monotonic() + how.checkpoint_seconds

    def run(self, units: Sequence[Unit]) -> Iterator[Record]:
        """Yield every record once it is with the sink."""
        offset = 0
        for unit in units:
            if unit.name not in self._known.sums:
                self._enter(unit.name)
                yield from self._run_unit(unit, offset)
                self._sink.close_unit(unit.name, pack_sums(self._collector.sums))
                self.sums += self._collector.sums.items()
            offset += unit.n_batches

    def checkpoint(self) -> None:
        """Keep the place and what was learned up to it."""
        start = time.monotonic()
        place = Place(self._unit, self._n_done, pack_sums(self._collector.sums))
        self._sink.checkpoint(place, self._adapted.save)
        took = time.monotonic() - start
        self._spent.checkpoints += took
        wait = max(self._how.checkpoint_seconds, took / _LONGEST_SHARE)
        self._due = time.monotonic() + wait

    def _enter(self, name: str) -> None:
        self._unit, self._n_done, self._collector = name, 0, Collector()
        place, state = self._known.place, self._known.state
        if place is None or place.unit != name or state is None:
            return
        try:
            self._adapted.load(state)
        except ArtifactError as error:
            raise CorruptFile(
                "wrong_content",
                f"The checkpoint cannot be loaded ({error}). Remove the folder {state.parent} and "
                "run the suite again.",
                path=state,
            ) from error
        self._n_done, self._collector.sums = place.n_batches, unpack_sums(place.sums)

    def _run_unit(self, unit: Unit, offset: int) -> Iterator[Record]:
        skipped = self._n_done
        batches = islice(iter(unit.batches), skipped, None)
        for record in iter_evaluate(
            self._adapted,
            feed(batches, self._job.model, self._job.wrapping),
            collector=self._collector,
            reveal_labels=self._job.reveal_labels,
        ):
            kept = replace(record, index=offset + skipped + record.index, predictions=None)
            self._sink.append(unit.name, kept)
            self.records.append(kept)
            self._n_done += 1
            # At the end of a unit there is nothing to keep: the next starts with a reset.
            if self._n_done < unit.n_batches and self._is_due():
                self.checkpoint()
            yield kept

    def _is_due(self) -> bool:
        every = self._how.checkpoint_every
        if every is not None:
            return self._n_done % every == 0
        return time.monotonic() >= self._due


def load_job(spec: JobSpec, materials: Materials, spent: Spent) -> Job:
    """Return the job with all it needs, checked; what can be refused early is."""
    data = materials.load_data(spec)
    if spec.size is not None and not data.is_folder:
        raise BadInput(
            "not_applicable",
            f"The option size applies only to folders of images; the images of {data.name} have a "
            "fixed size. Remove it.",
            option="size",
        )
    if spec.ignore_label != IGNORE_LABEL and not data.palette:
        raise BadInput(
            "not_applicable",
            f"The option ignore_label applies only to data with masks; {data.name} has none. "
            "Remove it.",
            option="ignore_label",
        )
    model = materials.load_model(spec, len(data.classes))
    job = Job(
        model=model,
        methods={},
        data=data,
        protocol=spec.get_protocol(),
        wrapping=spec.get_wrapping(),
        seeds=(spec.seed,),
        reveal_labels=spec.reveal_labels,
        trained_classes=None if spec.weights is None else find_classes(spec.weights),
    )
    check_job(job)
    spent.note("loading")
    artifact: Artifact | None = materials.get_artifact(spec, model, data)
    spent.note("artifact")
    wrapping = replace(job.wrapping, artifact=artifact)
    return check_job(replace(job, methods={spec.method: spec.get_config()}, wrapping=wrapping))


def _warm_up(adapted: Method, batch: Batch, reveal_labels: bool) -> None:
    """Make the first call of all, which is slow, before the clock runs, and undo it."""
    n = max(_WARM_UP, len(batch.x) // 8)
    if adapted.card.is_oracle and reveal_labels:
        adapted.reveal(batch.y[:n])
    with nullcontext() if batch.learns else adapted.paused():
        adapted(batch.x[:n])
    adapted.reset()


@contextmanager
def _collect_warnings() -> Iterator[list[str]]:
    """Gather the package's own warnings, which belong to the result; others go their way."""
    found: list[str] = []
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, AcclimateWarning):
                usual(message, category, *where, **more)
            elif str(message) not in found:
                found.append(str(message))

        warnings.simplefilter("always", AcclimateWarning)
        warnings.showwarning = show
        yield found


@contextmanager
def _use_threads(n_threads: int) -> Iterator[None]:
    """Compute with so many threads: a sum over parts depends on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
