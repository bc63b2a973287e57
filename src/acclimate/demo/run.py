"""Run the demonstration: prepare, stream every shift through every method, keep what happened."""

from __future__ import annotations

import copy
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from acclimate.adaptation import adapt
from acclimate.artifact import Artifact, versions
from acclimate.builtin import CLASSES, SPLITS, load_model, load_split, render
from acclimate.corruptions import Pixels, apply
from acclimate.demo.result import DemoResult
from acclimate.demo.settings import DemoSettings
from acclimate.evaluation import Record, Result, evaluate, iter_evaluate
from acclimate.functional.norm import norm_parameters
from acclimate.parts.options import PenaltyOptions
from acclimate.parts.source import Progress
from acclimate.preparation import prepare
from acclimate.report import Layer, Run, Sample
from acclimate.streams import Domain, reset_each

#: Images of each shift that are kept to be shown.
N_SAMPLES = 4
_SOURCE_BATCH = 128


def run_demo(settings: DemoSettings, progress: Progress | None = None) -> DemoResult:
    """Prepare the built-in model, then stream every shift through every method.

    Args:
        settings: What to run.
        progress: Called with the stage, the count done and the count to do.
    """
    tell: Progress = progress if progress is not None else lambda stage, done, total: None
    start = time.perf_counter()
    model = load_model()
    images, labels = render(settings.images, SPLITS["test"])
    y = torch.from_numpy(labels)
    clean = Domain("clean", _to_tensor(images), y)
    artifacts = [_prepare(model, settings, seed, tell) for seed in range(settings.seeds)]
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

    for seed, artifact in enumerate(artifacts):
        domains = [
            Domain(name, _to_tensor(apply(images, name, settings.severity, seed)), y)
            for name in settings.corruptions
        ]
        results = _stream(model, artifact, domains, settings, seed, count)
        runs += [Run(method, seed, result) for method, result in results.items()]
        if seed == 0:
            samples = _samples(clean, domains, results, settings)
    whole = list(reset_each([clean], settings.batch_size))
    clean_error = evaluate(adapt(copy.deepcopy(model), "source"), whole).error
    end = time.perf_counter()
    seconds = {"prepare": prepared - start, "stream": end - prepared, "all": end - start}
    return DemoResult(
        settings=settings,
        # Methods in their order, seeds within.
        runs=tuple(sorted(runs, key=lambda run: settings.methods.index(run.method))),
        artifacts=tuple(artifacts),
        layers=_layers(model, artifacts),
        samples=samples,
        clean_error=clean_error,
        provenance=_provenance(settings, artifacts[0], seconds),
    )


def _prepare(model: nn.Module, settings: DemoSettings, seed: int, tell: Progress) -> Artifact:
    x, y = load_split("train", settings.n_source)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    suffix = f", seed {seed}" if settings.seeds > 1 else ""
    return prepare(
        model,
        [(x[part], y[part]) for part in torch.split(order, _SOURCE_BATCH)],
        parts=("penalty", "prototypes"),
        penalty=PenaltyOptions(n_samples=settings.n_penalty),
        seed=seed,
        progress=lambda stage, done, total: tell(f"{stage}{suffix}", done, total),
    )


def _stream(
    model: nn.Module,
    artifact: Artifact,
    domains: Sequence[Domain],
    settings: DemoSettings,
    seed: int,
    count: Callable[[], None],
) -> dict[str, Result]:
    """Run all methods side by side, batch by batch.

    Side by side, because whatever else the machine does then slows all of them alike, and because
    the time that is left can be told from the batches that are done.
    """

    stream = reset_each(domains, settings.batch_size, seed)
    evaluations: dict[str, Iterator[Record]] = {}
    for name in settings.methods:
        # On a processor this layout is half as fast again; the numbers differ by rounding only.
        own = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        adapted = adapt(own, name, artifact, seed=seed)
        # The first call of all is slow; the stream starts with a reset, which undoes it.
        adapted(next(iter(stream)).x)
        evaluations[name] = iter_evaluate(adapted, stream)
    records: dict[str, list[Record]] = {name: [] for name in settings.methods}
    for _ in stream:
        for name, evaluation in evaluations.items():
            records[name].append(next(evaluation))
            count()
    return {name: Result(tuple(own)) for name, own in records.items()}


def _samples(
    clean: Domain, domains: Sequence[Domain], results: dict[str, Result], settings: DemoSettings
) -> tuple[Sample, ...]:
    """Return the first images of the last batch of each shift, with seed 0."""
    size = settings.batch_size
    last_clean = list(reset_each([clean], size, seed=0))[-1]
    last = {batch.domain: batch for batch in reset_each(domains, size, seed=0)}
    predicted = {
        method: {record.domain: record.predictions for record in result.records}
        for method, result in results.items()
    }
    return tuple(
        Sample(
            domain=name,
            clean=_to_png(last_clean.x[index]),
            shifted=_to_png(batch.x[index]),
            truth=CLASSES[int(batch.y[index])],
            predictions={
                method: CLASSES[int(by_domain[name][index])]
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
    settings: DemoSettings, artifact: Artifact, seconds: dict[str, float]
) -> dict[str, Any]:
    return {
        "command": settings.command,
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
