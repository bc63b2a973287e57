"""Random search over hyper-parameters and seeds; every model is trained once, and resumed.

runs = list_runs(base, [("sketch",), ("photo", "sketch")], n_trials=5, seeds=(0, 1, 2))
train_all(runs, "models", data=load_domains("pacs"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from acclimate.data.domains import DomainSet
from acclimate.errors import BadInput, check_at_least
from acclimate.progress import Progress
from acclimate.training.settings import DomainResult, DomainSettings
from acclimate.training.trainer import train


def file_name(run: DomainSettings) -> str:
    """Return the name of the file with the weights of a run in a search."""
    held_out = "-".join(name.replace(" ", "_") for name in run.held_out)
    kind = f"{Path(run.data).name}-{run.objective}-without-{held_out}"
    return f"{kind}-trial-{run.hparams_seed}-seed-{run.seed}.safetensors"


def list_runs(
    base: DomainSettings,
    held_out: Iterable[Sequence[str]],
    n_trials: int = 1,
    seeds: Sequence[int] = (0,),
    defaults: Mapping[str, Any] | None = None,
) -> list[DomainSettings]:
    """Return the settings of the training runs of a random search, each once.

    Args:
        base: Settings of all runs; test domains, seeds and trial are replaced.
        held_out: Sets of domains to hold out; duplicates are ignored.
        n_trials: Number of trials: the default hyper-parameters, then draws from DomainBed's
            distributions.
        seeds: Seeds of splits, draws and training.
        defaults: Replaces DomainBed's default hyper-parameters in the first trial.
    """
    check_at_least("n_trials", n_trials, 1)
    if not seeds:
        raise BadInput("missing_option", "Expected at least 1 seed, found none.", option="seeds")
    wanted = dict.fromkeys(tuple(sorted(names)) for names in held_out)
    return [
        replace(
            base,
            test_domain=without,
            hparams_seed=trial,
            trial_seed=seed,
            seed=seed,
            **({} if trial else dict(defaults or {})),
        )
        for seed in seeds
        for trial in range(n_trials)
        for without in wanted
    ]


def train_all(
    runs: Sequence[DomainSettings],
    folder: str | Path,
    *,
    data: DomainSet | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    on_result: Callable[[DomainSettings, DomainResult], None] | None = None,
) -> dict[DomainSettings, DomainResult]:
    """Train all runs that are not done yet, and resume those that were interrupted.

    Several processes may share a folder: each run is trained by one of them. `on_result` is called
    with each run and its result.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    found = {}
    for run in runs:
        out = place / file_name(run)
        with FileLock(out.with_suffix(".lock")):
            found[run] = train(run, out, resume=True, device=device, data=data, progress=progress)
        if on_result is not None:
            on_result(run, found[run])
    return found
