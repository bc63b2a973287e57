"""Run the demonstration: prepare, stream every shift through every method, keep what happened."""

from __future__ import annotations

import copy
import io
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from acclimate.adaptation import adapt
from acclimate.artifact import Artifact, versions
from acclimate.comparison import ArraySource, Protocol, Wrapping, compare, find_needs
from acclimate.corruptions import Pixels, apply
from acclimate.demo.result import DemoResult
from acclimate.demo.settings import DemoSettings
from acclimate.demo.tasks import Task, get_task
from acclimate.evaluation import Result, evaluate
from acclimate.functional.norm import norm_parameters
from acclimate.parts.options import PenaltyOptions
from acclimate.parts.source import Progress
from acclimate.preparation import prepare
from acclimate.report import Layer, Run, Sample
from acclimate.streams import Domain, reset_each

#: Images of each shift that are kept to be shown.
N_SAMPLES = 4


def run_demo(
    settings: DemoSettings, progress: Progress | None = None, task: Task | None = None
) -> DemoResult:
    """Prepare the model of a task, then stream every shift through every method.

    Args:
        settings: What to run.
        progress: Called with the stage, the count done and the count to do.
        task: Another task than the one that the settings name, such as one with another model.
    """
    tell: Progress = progress if progress is not None else lambda stage, done, total: None
    start = time.perf_counter()
    task = task if task is not None else get_task(settings.data)
    model = task.load_model()
    test = task.load("test", settings.images)
    y = torch.from_numpy(test.labels)
    clean = Domain("clean", _to_tensor(test.images), y)
    artifacts = [_prepare(model, task, settings, seed, tell) for seed in range(settings.seeds)]
    prepared = time.perf_counter()
    runs: list[Run] = []
    samples: tuple[Sample, ...] = ()
    n_done = 0
    n_calls = len(settings.methods) * settings.n_batches * settings.seeds
    tell("stream", 0, n_calls)

    def count() -> None:
        nonlocal n_done
        n_done += 1
        tell("stream", n_done, n_calls)

    protocol = Protocol(batch_size=settings.batch_size, order="shuffled")
    for seed, artifact in enumerate(artifacts):
        domains = [
            Domain(name, _to_tensor(apply(test.images, name, settings.severity, seed)), y)
            for name in settings.corruptions
        ]
        results = compare(
            model,
            settings.methods,
            protocol.units({domain.name: [domain] for domain in domains}, seed=seed),
            Wrapping(artifact=artifact),
            seed=seed,
            keep_predictions=True,
            reveal_labels=settings.reveal_labels,
            progress=count,
        )
        runs += [Run(method, seed, result) for method, result in results.items()]
        if seed == 0:
            samples = _samples(clean, domains, results, settings, test.classes)
    whole = list(reset_each([clean], settings.batch_size))
    clean_error = evaluate(adapt(copy.deepcopy(model), "source"), whole).error
    end = time.perf_counter()
    seconds = {"prepare": prepared - start, "stream": end - prepared, "all": end - start}
    return DemoResult(
        settings=settings,
        task=task,
        # Methods in their order, seeds within.
        runs=tuple(sorted(runs, key=lambda run: settings.methods.index(run.method))),
        artifacts=tuple(artifacts),
        layers=_layers(model, artifacts),
        samples=samples,
        clean_error=clean_error,
        provenance=_provenance(settings, test.description, artifacts[0], seconds),
    )


def _prepare(
    model: nn.Module, task: Task, settings: DemoSettings, seed: int, tell: Progress
) -> Artifact:
    source = task.load("train", settings.n_source)
    suffix = f", seed {seed}" if settings.seeds > 1 else ""
    # The page shows the penalties, whatever the methods need.
    parts = dict.fromkeys(("penalty", "prototypes", *find_needs(settings.methods)))
    return prepare(
        model,
        ArraySource(Domain(task.data, source.images, source.labels), seed),
        parts=tuple(parts),
        penalty=PenaltyOptions(n_samples=settings.n_penalty),
        seed=seed,
        progress=lambda stage, done, total: tell(f"{stage}{suffix}", done, total),
    )


def _samples(
    clean: Domain,
    domains: Sequence[Domain],
    results: Mapping[str, Result],
    settings: DemoSettings,
    classes: Sequence[str],
) -> tuple[Sample, ...]:
    """Return the first images of the last batch of each shift, with seed 0."""
    size = settings.batch_size
    last_clean = list(reset_each([clean], size, seed=0))[-1]
    last = {batch.domain: batch for batch in reset_each(domains, size, seed=0)}
    predicted = {
        method: {r.domain: r.predictions for r in result.records if r.predictions is not None}
        for method, result in results.items()
    }
    return tuple(
        Sample(
            domain=name,
            clean=_to_png(last_clean.x[index]),
            shifted=_to_png(batch.x[index]),
            truth=classes[int(batch.y[index])],
            predictions={
                method: classes[int(by_domain[name][index])]
                for method, by_domain in predicted.items()
            },
        )
        for name, batch in last.items()
        for index in range(min(N_SAMPLES, len(batch.x)))
    )


def _layers(model: nn.Module, artifacts: Sequence[Artifact]) -> tuple[Layer, ...]:
    penalties = [artifact.part("penalty") for artifact in artifacts]
    of_norms = norm_parameters(model)
    return tuple(
        Layer(
            name, _kind(name, parameter, name in of_norms), tuple(float(w[name]) for w in penalties)
        )
        for name, parameter in model.named_parameters()
        if name in penalties[0]
    )


def _kind(name: str, parameter: Tensor, is_norm: bool) -> str:
    if is_norm:
        return "normalisation, scale" if name.endswith("weight") else "normalisation, shift"
    if parameter.dim() == 1:
        return "head, bias"
    return "convolution" if parameter.dim() == 4 else "head, weight"


def _provenance(
    settings: DemoSettings,
    data: Mapping[str, Any],
    artifact: Artifact,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    return {
        "command": settings.command,
        "data": dict(data),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "model_sha256": artifact.card["model"]["weights_sha256"],
        "n_cores": os.cpu_count(),
        "n_threads": torch.get_num_threads(),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


def _to_tensor(images: Pixels) -> Tensor:
    # Colour stays the last axis in memory.
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255


def _to_png(image: Tensor) -> bytes:
    pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return file.getvalue()
