"""Compare methods: a suite of methods and seeds, side by side in this process.

The suite is kept in a folder like any other (`acclimate.bench.Store`), and can be resumed, reported
on and extended in the same way.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from acclimate.bench.execute import RunOptions, collect_warnings, execute
from acclimate.bench.job import JobSpec
from acclimate.bench.load import Job, Loader, refuse_methods
from acclimate.bench.provenance import (
    Timings,
    describe_origin,
    describe_settings,
    describe_stream,
    file_sha256,
)
from acclimate.bench.run_folder import BEGUN, LOCK, RECORDS, RESULT, RunFolder, check_start
from acclimate.bench.suite import ARTIFACTS, JOBS, SUITE, SUITES, Entry, Outcome, Store, Suite
from acclimate.errors import (
    AcclimateError,
    BadInput,
    InvalidConfig,
    UnsuitableModel,
    check_name,
    check_options,
)
from acclimate.methods import get_method, list_methods
from acclimate.methods.gradient import GradientMethod
from acclimate.metrics import BatchMetrics, MetricsWriter, Record
from acclimate.progress import Progress
from acclimate.storage import digest

ALL = "all"

_KEEP_SETTINGS = "Use the same settings as before, pass another --out, or start again with --force."


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


def choose_methods(names: Sequence[str], reveal_labels: bool = False) -> tuple[str, ...]:
    """Return the methods of these names; `all` stands for every one.

    `tent+swr` is TENT with the term SWR. Oracles, which learn from labels, must be allowed.

    >>> choose_methods(["source", "tent"])
    ('source', 'tent')
    """
    if list(names) == [ALL]:
        known = list_methods()
        return tuple(name for name in known if reveal_labels or not get_method(name).card.is_oracle)
    oracles = [name for name in names if get_method(name.partition("+")[0]).card.is_oracle]
    if oracles and not reveal_labels:
        raise BadInput(
            "oracle_method",
            f"{', '.join(oracles)} learns from the test labels, which makes it an upper bound and "
            "not a method to deploy. To run it anyway, pass --reveal-labels.",
            methods=tuple(oracles),
        )
    check_each_once("methods", names)
    return tuple(names)


def check_each_once(option: str, names: Sequence[str]) -> None:
    """Refuse an empty list of names, and names that are listed twice."""
    text = f"Expected one or more {option}, each listed once, found: {', '.join(names) or 'none'}."
    if not names:
        raise BadInput("missing_option", text, option=option)
    for place, name in enumerate(names):
        if name in names[:place]:
            raise BadInput("duplicate", text, name=name)


def split_options(methods: Sequence[str], values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the hyper-parameters of each method.

    A name applies to all methods that have it; `method.name` to that method, and wins.

    >>> split_options(["source", "tent"], {"lr": 1e-4, "tent.beta1": 0.8})
    {'source': {}, 'tent': {'lr': 0.0001, 'beta1': 0.8}}
    """
    fields = {
        name: [spec.name for spec in dataclasses.fields(get_method(name).config_class)]
        for name in methods
    }
    for key in values:
        method, dot, option = key.rpartition(".")
        if dot:
            check_name(method, methods, "method of the comparison", InvalidConfig)
        known = fields[method] if dot else sorted({n for own in fields.values() for n in own})
        if option not in known:
            check_options([key], known, method or "This set of methods")
    return {
        name: {key: value for key, value in values.items() if key in known}
        | {
            key.removeprefix(f"{name}."): value
            for key, value in values.items()
            if key.startswith(f"{name}.")
        }
        for name, known in fields.items()
    }


def make_comparison(
    shared: Mapping[str, Any],
    methods: Sequence[str],
    values: Mapping[str, Any] | None = None,
    *,
    terms: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    title: str = "comparison",
) -> Suite:
    """Return the suite of several methods and seeds on one stream.

    Args:
        shared: Fields of `JobSpec` that all jobs have.
        methods: As `choose_methods` returns them.
        values: Hyper-parameters; see `split_options`.
        terms: Added to all gradient methods among them.
        seeds: Of the jobs.
        title: Of the suite.
    """
    plain = list(dict.fromkeys(name.partition("+")[0] for name in methods))
    options = split_options(plain, values or {})
    entries = []
    for name in methods:
        method, *own = name.split("+")
        added = terms if issubclass(get_method(method), GradientMethod) else ()
        for seed in seeds:
            spec = JobSpec(
                **shared,
                method=method,
                options=options[method],
                terms={term: {} for term in (*own, *added)},
                seed=seed,
            )
            entries.append(Entry(spec, spec.label))
    return Suite(title=title, entries=tuple(entries))


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
    loader: Loader | None = None,
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
    how = options or RunOptions()
    loader = loader or Loader(Path(out) / ARTIFACTS, progress=progress)
    store, timings = Store(out, suite), Timings()

    def write(spec: JobSpec, record: Record) -> None:
        if metrics is not None:
            metrics.write(BatchMetrics.of_record(record), method=spec.label, seed=spec.seed)

    with collect_warnings(passes_on=True) as warned:
        jobs = _open_all(store.jobs(), loader)
        timings.note("loading")
        identity = describe_settings(list(jobs.values()))
        root = RunFolder(out)
        with root.lock(), _withdrawn_if_refused(root, list(jobs)):
            if force:
                _discard(root, list(jobs))
            root.check_same(identity, str(root.path), _KEEP_SETTINGS)
            root.write(BEGUN, identity)
            Store.create(out, suite)
            totals = {name: sum(u.n_batches for u in job.units()) for name, job in jobs.items()}
            n_before, has_begun = 0, False

            def move(done: int, total: int) -> None:
                nonlocal has_begun
                if progress is not None and has_begun:
                    progress("measuring (batches)", n_before + done, sum(totals.values()))
                has_begun = True

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
                timings.note("artifact")
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
                        timings=timings,
                        warned=warned,
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
    artifacts = {job.label: job.artifact for job in jobs.values()}
    return {
        **describe_origin(command, first.device),
        "model": spec.model_name,
        "weights": None if file is None else {"file": file, "sha256": file_sha256(file)},
        **describe_stream(first),
        "settings": dict(identity),
        "artifact_sha256": {
            label: digest(own.tensors) for label, own in artifacts.items() if own is not None
        },
        "n_threads": torch.get_num_threads(),
    }
