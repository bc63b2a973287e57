"""Random search: so many trials with so many seeds, each model trained once and gone on with.

runs = list_runs(base, [("sketch",), ("photo", "sketch")], n_trials=5, seeds=(0, 1, 2))
train_all(runs, "models", data=load_domains("pacs"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from acclimate.data.domains import DomainSet
from acclimate.errors import BadInput
from acclimate.progress import Progress
from acclimate.training.settings import DomainResult, DomainSettings
from acclimate.training.trainer import train


@dataclass(frozen=True)
class SearchRun:
    """One training run of a random search.

    Attributes:
        without: The domains that are not trained on, sorted.
        trial: Number of the draw of hyper-parameters; 0 stands for the defaults.
        seed: Of the splits, the draw, and the training.
        settings: Of the run.
    """

    without: tuple[str, ...]
    trial: int
    seed: int
    settings: DomainSettings

    @property
    def file(self) -> str:
        """Name of the file with its weights."""
        held_out = "-".join(name.replace(" ", "_") for name in self.without)
        data = Path(self.settings.data).name
        kind = f"{data}-{self.settings.objective}-without-{held_out}"
        return f"{kind}-trial-{self.trial}-seed-{self.seed}.safetensors"


def list_runs(
    base: DomainSettings,
    held_out: Iterable[Sequence[str]],
    n_trials: int = 1,
    seeds: Sequence[int] = (0,),
    defaults: Mapping[str, Any] | None = None,
) -> list[SearchRun]:
    """Return the training runs of a random search, each once.

    Args:
        base: What all have in common; what it holds out, its seeds and its trial are replaced.
        held_out: Sets of domains that models are to be trained without; some may come twice.
        n_trials: Draws of hyper-parameters from DomainBed's distributions; the first is no draw,
            but the defaults.
        seeds: Each has splits, draws and training of its own.
        defaults: Hyper-parameters of the first trial other than DomainBed's defaults.

    Raises:
        BadInput: There would be no run.
    """
    text = f"Expected at least 1 trial and 1 seed, found {n_trials} and {len(seeds)}."
    if n_trials < 1:
        raise BadInput("out_of_range", text, option="n_trials", found=n_trials)
    if not seeds:
        raise BadInput("missing_option", text, option="seeds")
    wanted = dict.fromkeys(tuple(sorted(names)) for names in held_out)
    return [
        SearchRun(
            without,
            trial,
            seed,
            replace(
                base,
                test_domain=without,
                hparams_seed=trial,
                trial_seed=seed,
                seed=seed,
                **({} if trial else dict(defaults or {})),
            ),
        )
        for seed in seeds
        for trial in range(n_trials)
        for without in wanted
    ]


def train_all(
    runs: Sequence[SearchRun],
    folder: str | Path,
    *,
    data: DomainSet | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    on_result: Callable[[SearchRun, DomainResult], None] | None = None,
) -> dict[SearchRun, DomainResult]:
    """Train what is not trained yet, resuming what an earlier call left unfinished.

    Several processes may share a folder: each run is trained by one of them.

    Args:
        runs: What to train.
        folder: Of the weights; made if needed.
        data: The set, if it is loaded already.
        device: `auto`, `cpu`, `cuda` or `mps`.
        progress: Called with the stage, the count done and the count to do.
        on_result: Called with each run that has ended, and what it gave.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    found = {}
    for run in runs:
        out = place / run.file
        with FileLock(out.with_suffix(".lock")):
            found[run] = train(
                run.settings, out, resume=True, device=device, data=data, progress=progress
            )
        if on_result is not None:
            on_result(run, found[run])
    return found
