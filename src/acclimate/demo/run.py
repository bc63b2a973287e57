"""Run the demonstration: prepare, stream every shift through every method, keep what happened."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from acclimate.adaptation import adapt
from acclimate.artifact import Artifact
from acclimate.comparison import Protocol, Run, Wrapping, compare, find_needs
from acclimate.corruptions import Pixels, apply
from acclimate.data import Batches
from acclimate.demo.extracts import get_layers, get_samples
from acclimate.demo.groups import Group, make_groups
from acclimate.demo.notes import UsedModel
from acclimate.demo.result import DemoResult
from acclimate.demo.settings import DemoSettings
from acclimate.demo.tasks import SourceModel, Task, get_task
from acclimate.evaluation import evaluate
from acclimate.parts import Contrast, Penalty
from acclimate.preparation import prepare
from acclimate.progress import Progress
from acclimate.report import BASELINE, Sample
from acclimate.storage import versions
from acclimate.streams import Domain, reset_each

#: A source model, the module it is, and an artifact for each seed.
Prepared = tuple[SourceModel, nn.Module, tuple[Artifact, ...]]


def run_demo(
    settings: DemoSettings, progress: Progress | None = None, task: Task | None = None
) -> DemoResult:
    """Prepare the models of a task, then stream every shift through every method.

    Args:
        settings: What to run.
        progress: Called with the stage, the count done and the count to do.
        task: Another task than the one that the settings name, such as one with another model.

    Raises:
        UnsuitableModel: A method refuses every source model of the task.
    """
    tell: Progress = progress if progress is not None else lambda stage, done, total: None
    start = time.perf_counter()
    task = task if task is not None else get_task(settings.data)
    groups = make_groups(task, settings)
    test = task.load("test", settings.images)
    if settings.order == "sorted":
        places = np.argsort(test.labels, kind="stable")
        test = replace(test, images=test.images[places], labels=test.labels[places])
    y = torch.from_numpy(test.labels)
    clean = Domain("clean", _to_tensor(test.images), y)
    models = _prepare_all(task, groups, settings, tell)
    prepared = time.perf_counter()
    runs: list[Run] = []
    samples: tuple[Sample, ...] = ()
    for seed in range(settings.seeds):
        domains = [
            Domain(name, _to_tensor(apply(test.images, name, settings.severity, seed)), y)
            for name in settings.corruptions
        ]
        own = _stream(groups, models, domains, settings, seed, tell)
        runs += own
        if seed == 0:
            samples = get_samples(clean, domains, own, settings, test.classes)
    whole = list(reset_each([clean], settings.batch_size))
    used = tuple(
        UsedModel(source, artifacts, evaluate(adapt(copy.deepcopy(model), BASELINE), whole).error)
        for source, model, artifacts in models.values()
    )
    end = time.perf_counter()
    seconds = {"prepare": prepared - start, "stream": end - prepared, "all": end - start}
    _, first, artifacts = next(iter(models.values()))
    order = [(group.name, method) for group in groups for method in group.methods]
    return DemoResult(
        settings=settings,
        task=task,
        groups=groups,
        models=used,
        # Methods in their order, seeds within.
        runs=tuple(sorted(runs, key=lambda run: order.index((run.group, run.method)))),
        layers=get_layers(first, artifacts),
        samples=samples,
        provenance=_provenance(settings, test.description, used[0], seconds),
    )


def _prepare_all(
    task: Task, groups: Sequence[Group], settings: DemoSettings, tell: Progress
) -> dict[str, Prepared]:
    """Load the models that methods stand on, and prepare an artifact of each for every seed."""
    images = task.load("train", settings.n_source)
    prepared: dict[str, Prepared] = {}
    for chosen in dict.fromkeys(group.model for group in groups):
        methods = [name for group in groups if group.model == chosen for name in group.methods]
        # The page shows the penalties of the first model, whatever the methods need.
        shown = () if prepared else ("penalty", "prototypes")
        parts = tuple(dict.fromkeys((*shown, *find_needs(methods))))
        model = chosen.load()
        load_head = chosen.load_head if "contrast" in parts else None
        head = None if load_head is None else load_head()
        options = {
            "penalty": Penalty(n_samples=settings.n_penalty),
            "contrast": Contrast(head=head),
        }
        artifacts = []
        for seed in range(settings.seeds):
            words = [chosen.name] * bool(prepared) + [f"seed {seed}"] * (settings.seeds > 1)
            artifacts.append(
                prepare(
                    model,
                    Batches(images, seed=seed),
                    parts=[options.get(name, name) for name in parts],
                    seed=seed,
                    progress=_name_stages(tell, words),
                )
            )
        prepared[chosen.name] = (chosen, model, tuple(artifacts))
    return prepared


def _name_stages(tell: Progress, words: Sequence[str]) -> Progress:
    """Say of every stage what it is done for."""
    return lambda stage, done, total: tell(", ".join([stage, *words]), done, total)


def _stream(
    groups: Sequence[Group],
    models: Mapping[str, Prepared],
    domains: Sequence[Domain],
    settings: DemoSettings,
    seed: int,
    tell: Progress,
) -> list[Run]:
    """Stream every shift through every method, one group after the other."""
    order = "file" if settings.order == "sorted" else "shuffled"
    protocol = Protocol(batch_size=settings.batch_size, order=order)
    whole = protocol.units({domain.name: [domain] for domain in domains}, seed=seed)
    units = [[group.cut(unit, settings.batch_size) for unit in whole] for group in groups]
    n_calls = sum(
        len(group.methods) * sum(unit.n_batches for unit in own)
        for group, own in zip(groups, units, strict=True)
    )
    n_done, n_all = seed * n_calls, settings.seeds * n_calls

    def count() -> None:
        nonlocal n_done
        n_done += 1
        tell("stream", n_done, n_all)

    if seed == 0:
        tell("stream", 0, n_all)
    runs: list[Run] = []
    for group, own in zip(groups, units, strict=True):
        _, model, artifacts = models[group.model.name]
        results = compare(
            model,
            group.methods,
            own,
            Wrapping(artifact=artifacts[seed]),
            seed=seed,
            keep_predictions=True,
            reveal_labels=settings.reveal_labels,
            progress=count,
        )
        runs += [Run(method, seed, result, group.name) for method, result in results.items()]
    return runs


def _provenance(
    settings: DemoSettings,
    data: Mapping[str, Any],
    model: UsedModel,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    return {
        "command": settings.command,
        "data": dict(data),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "model_sha256": model.sha256,
        "n_cores": os.cpu_count(),
        "n_threads": torch.get_num_threads(),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


def _to_tensor(images: Pixels) -> Tensor:
    # Colour stays the last axis in memory.
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
