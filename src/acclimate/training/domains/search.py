"""Random search: so many trials with so many seeds, each model trained once and gone on with.

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
        base: What all have in common; what it holds out, its seeds and its trial are replaced.
        held_out: Sets of domains that models are to be trained without; some may come twice.
        n_trials: Draws of hyper-parameters from DomainBed's distributions; the first is no draw,
            but the defaults.
        seeds: Each has splits, draws and training of its own.
        defaults: Hyper-parameters of the first trial other than DomainBed's defaults.
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
    """Train what is not trained yet, resuming what an earlier call left unfinished.

    Several processes may share a folder: each run is trained by one of them. `on_result` is called
    with each run that has ended, and what it gave.
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
