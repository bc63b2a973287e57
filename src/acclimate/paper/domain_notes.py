"""What a reader of table 6 must know: models, training, choices, and BatchNorm's statistics."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from acclimate.bench.outcome import Entry
from acclimate.paper.domain_jobs import Choice, TrainedDomains
from acclimate.training import DomainResult
from acclimate.training.domains.search import SearchRun


def describe_plan(
    scale: str,
    trained_sets: Sequence[TrainedDomains],
    choices: Sequence[Choice],
    entries: Sequence[Entry],
) -> list[str]:
    """Return the notes of the table."""
    scaled = ["A trial on a toy task: these numbers mean nothing."] if scale == "smoke" else []
    models = [_describe_training(trained) for trained in trained_sets]
    return [
        *scaled,
        *dict.fromkeys(_describe_setup(trained) for trained in trained_sets),
        *models,
        *_describe_statistics(entries),
        *_describe_choices(choices),
        "± is the standard error over seeds. Where a claim is judged, domains are what is paired.",
    ]


def record_model(run: SearchRun, result: DomainResult) -> dict[str, Any]:
    """Return what is to be known of a trained model, as JSON types."""
    return {
        "file": run.file,
        "algorithm": run.settings.objective,
        "without": list(run.without),
        "trial": run.trial,
        "seed": run.seed,
        "hparams": asdict(run.settings.hparams),
        "command": run.settings.command,
        "statistics": "frozen",
        "step": result.step,
        "validation": result.validation,
        "minutes": result.minutes,
        "n_unreadable": len(result.unreadable),
    }


def _describe_setup(trained: TrainedDomains) -> str:
    setup = trained.setup
    where = setup.name or f"{setup.column}, {setup.model}"
    text = (
        f"{where}: {setup.weights}, BatchNorm with the statistics of these, frozen, in training "
        'and (as "source" statistics) in adaptation'
    )
    if setup.size is not None:
        text += f"; images of {setup.size} × {setup.size} pixels"
    if setup.tried is not None:
        text += f"; candidates are tried on {setup.tried} images of each domain"
    if "images" in setup.prepare:
        text += f"; prepared from {setup.prepare['images']} images of the training domains"
    epochs = setup.prepare.get("parts", {}).get("prototypes", {}).get("epochs")
    if epochs:
        text += f", a projector with {epochs} epoch{'s' if epochs > 1 else ''}"
    if not setup.name:
        return f"{text}."
    return (
        f"{text}. It stands in for {setup.column} with ResNet-50, whose published numbers are "
        "shown: compare orders and signs, not levels."
    )


def _describe_training(trained: TrainedDomains) -> str:
    runs = [run for run, _ in trained.models.values()]
    results = [result for _, result in trained.models.values()]
    first = runs[0].settings
    trials = len({run.trial for run in runs})
    hparams = first.hparams
    means = [result.mean for result in results]
    how = f"Adam at {hparams.lr:g}, {hparams.batch_size} images of each domain a step"
    if trials > 1:
        how = f"{trials} trials of hyper-parameters, the first: {how}"
    return (
        f"{trained.setup.column}, {trained.algorithm.upper()}: {len(runs)} models, "
        f"{first.steps} steps "
        f"(DomainBed: 5000) of {how} (DomainBed: 5e-05, 32); accuracy on what was held out of the "
        f"training domains: {statistics.fmean(means):.1f} % ({min(means):.1f} to {max(means):.1f})."
    )


def _describe_statistics(entries: Sequence[Entry]) -> list[str]:
    """Return which statistics BatchNorm had, by row."""
    found: dict[str, dict[str, None]] = {}
    for entry in entries:
        policy = str(entry.spec.get_config().to_dict()["statistics"])
        found.setdefault(str(entry.axes["row"]), {})[policy] = None
    described = "; ".join(f"{row}: {' or '.join(own)}" for row, own in found.items())
    return [f"Statistics of BatchNorm, {described}."]


def _describe_choices(choices: Sequence[Choice]) -> list[str]:
    """Return a line for each algorithm, test domain and seed in which anything was chosen."""
    lines: dict[str, list[str]] = {}
    for own in choices:
        if len(own.options) == 1:
            continue
        trial, candidate = own.options[own.chosen]
        n_trials = len({number for number, _ in own.options})
        more = f", trial {trial}" if n_trials > 1 else ""
        place = f"{own.trained.setup.column}, {own.trained.algorithm.upper()}, {own.test_domain}"
        described = f"{candidate.row} {candidate.label}{more}".replace("  ", " ")
        lines.setdefault(f"Chosen, {place}, seed {own.seed}", []).append(described)
    return [f"{place}: {'; '.join(described)}." for place, described in lines.items()]
