"""Run a suite with whichever engine, and gather what came out."""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path
from typing import Any

from acclimate import zoo
from acclimate.bench.attempt import Setup, run_here
from acclimate.bench.events import Event, OnEvent
from acclimate.bench.execute import RunOptions
from acclimate.bench.job import JobSpec
from acclimate.bench.outcome import Outcome
from acclimate.bench.store import Store
from acclimate.bench.suite import Suite
from acclimate.data import SETS
from acclimate.errors import BadInput, did_you_mean
from acclimate.zoo.segmentation import is_dense_name

#: Where the function of each engine is; loaded when it is asked for.
ENGINES = {
    "local": "acclimate.bench.local:run_local",
    "ray": "acclimate.bench.ray_engine:run_ray",
}

# What each engine takes beyond what all do.
_OPTIONS: dict[str, tuple[str, ...]] = {"local": (), "ray": ("address", "n_cpus", "n_gpus")}


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
    """Run all jobs of a suite that are not done yet; return what came out of those that are.

    The same call again goes on where this one was cut: jobs that are done are not run again, others
    go on from their last checkpoint, to the same records as if they had not been cut. Several
    processes may run the same suite in one folder at once; they share the work.

    A job that fails does not stop the others: it is missing in what is returned, and
    `Store(out).statuses()` says why.

    Args:
        suite: The jobs.
        out: Folder of the suite; see `acclimate.bench.Store`.
        engine: A name in `ENGINES`.
        n_workers: Processes; None takes half the cores, or all of a cluster. 0 runs all jobs in
            this one, by the local engine only.
        retries: How often a job is taken up again after the process that ran it has died.
        on_event: Is told what happens; what it raises ends the run.
        device: `auto`, `cpu`, `cuda` or `mps`.
        artifacts: Folder of prepared artifacts, which suites may share; in `out` by default.
        checkpoint_every: Batches between two checkpoints; None for about 20 seconds.
        command: What was typed, for the provenance; by default the arguments of this process.
        **options: More that the engine takes; see `acclimate.bench.ray_engine.run_ray`.

    Raises:
        BadInput: There is no such engine or option, or the folder cannot be used.
        MissingExtra: The engine is not installed.
    """
    if engine not in ENGINES:
        raise BadInput(
            "unknown_name",
            f'Unknown engine "{engine}". {did_you_mean(engine, ENGINES)}',
            kind="engine",
            name=engine,
            known=tuple(ENGINES),
        )
    for name in options:
        if name not in _OPTIONS[engine]:
            hint = did_you_mean(name, _OPTIONS[engine])
            raise BadInput(
                "unknown_option",
                f'The engine {engine} has no option "{name}". {hint}',
                option=name,
                known=_OPTIONS[engine],
            )
    if checkpoint_every is not None and checkpoint_every < 1:
        raise BadInput(
            "out_of_range",
            f"Expected checkpoint_every to be at least 1 batch, found {checkpoint_every}.",
            option="checkpoint_every",
            found=checkpoint_every,
        )
    if retries < 0:
        raise BadInput(
            "out_of_range",
            f"Expected retries to be at least 0, found {retries}.",
            option="retries",
            found=retries,
        )
    tell = on_event if on_event is not None else _ignore
    asked = Store(out, suite)
    for name, entry in asked.jobs().items():
        if not asked.is_done(name):
            _check_names(entry.spec)
            if engine != "local" or n_workers != 0:
                entry.spec.check_portable()
    store = Store.create(out, suite)
    typed = shlex.join(sys.argv) if command is None else command
    setup = Setup(
        artifacts=store.artifacts if artifacts is None else Path(artifacts),
        device=device,
        manner=RunOptions(checkpoint_every=checkpoint_every, command=typed),
    )
    jobs = store.jobs()
    done = [name for name in jobs if store.is_done(name)]
    for name in done:
        store.folder(name).remove_leftovers()  # of a process killed right after it was done
        tell(Event("found", name, jobs[name]))
    left = [name for name in jobs if name not in done]
    if left and engine == "local" and n_workers == 0:
        run_here(store, left, setup, tell)
    elif left:
        module, _, function = ENGINES[engine].partition(":")
        run = getattr(importlib.import_module(module), function)
        run(store, left, setup, tell, n_workers=n_workers, retries=retries, **options)
    return store.outcomes()


def _check_names(spec: JobSpec) -> None:
    """Refuse a job whose model or data is misspelt, before anything is started for it."""
    if (
        isinstance(spec.model, str)
        and ":" not in spec.model
        and spec.model != "builtin"
        and not is_dense_name(spec.model)
    ):
        zoo.get_spec(spec.model)
    for data in (spec.data, spec.prepare.source or spec.data):
        if data not in SETS and not Path(data).is_dir():
            raise BadInput(
                "unknown_name",
                f'"{data}" is neither a folder nor a data set. {did_you_mean(data, SETS)}',
                kind="data set",
                name=data,
                known=tuple(SETS),
            )


def _ignore(event: Event) -> None:
    pass
