"""Run the demonstration: a suite of methods, shifts and seeds, side by side, on a small task."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from acclimate.adaptation import adapt
from acclimate.artifact import Artifact
from acclimate.bench.execute import RunOptions, read_kept
from acclimate.bench.job import JobSpec, Preparing
from acclimate.bench.load import Loader, join
from acclimate.bench.outcome import Entry, Outcome
from acclimate.bench.side_by_side import run_side_by_side
from acclimate.bench.store import ARTIFACTS
from acclimate.bench.suite import Suite
from acclimate.data.datasets import corrupt_images
from acclimate.data.request import Data
from acclimate.demo.groups import Group, make_groups
from acclimate.demo.notes import UsedModel
from acclimate.demo.result import DemoResult
from acclimate.demo.samples import get_layers, get_samples
from acclimate.demo.settings import DemoSettings
from acclimate.demo.tasks import SourceModel, Task, get_task
from acclimate.evaluation import evaluate
from acclimate.parts.contrastive_head import write_head
from acclimate.progress import Progress
from acclimate.report import BASELINE
from acclimate.streams import Domain, reset_each
from acclimate.streams.cutting import shuffled

#: The page shows what this method's artifact contains, whatever methods are compared.
_SHOWN = "swr_nsp"


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
    report: Progress = progress if progress is not None else lambda stage, done, total: None
    start = time.perf_counter()
    task = task if task is not None else get_task(settings.data)
    groups = make_groups(task, settings)
    with TemporaryDirectory(prefix="acclimate-demo-") as folder:
        loader = DemoLoader(Path(folder) / ARTIFACTS, task, settings)
        suite = make_suite(task, groups, settings, Path(folder))
        artifacts = _prepare_all(suite, groups, loader, settings, report)
        prepared = time.perf_counter()
        loader.progress = None
        compared = run_side_by_side(
            suite,
            folder,
            loader,
            options=RunOptions(command=settings.command),
            progress=_name_stream(report),
        )
        samples = get_samples(
            loader.load_data(suite.entries[0].spec),
            loader.clean,
            [
                (own, _read_predictions(Path(folder), own, settings))
                for own in compared.outcomes
                if own.entry.spec.seed == 0 and own.entry.spec.images == settings.images
            ],
            settings,
        )
        used = tuple(
            UsedModel(source, own, _measure_clean(source, loader.clean, settings))
            for source, own in artifacts.items()
        )
    end = time.perf_counter()
    seconds = {"prepare": prepared - start, "stream": end - prepared, "all": end - start}
    return DemoResult(
        settings=settings,
        task=task,
        groups=groups,
        models=used,
        outcomes=compared.outcomes,
        layers=get_layers(task.models[0].load(), used[0].artifacts),
        samples=samples,
        provenance={
            **compared.provenance,
            "data": loader.images.description,
            "model_sha256": used[0].sha256,
            "n_cores": compared.provenance["machine"]["n_cores"],
            "seconds": {name: round(value, 1) for name, value in seconds.items()},
        },
    )


class DemoLoader(Loader):
    """Provides the images of a task, corrupted with the seed of each job.

    Args:
        artifacts: Folder of artifacts.
        task: The task.
        settings: How many images, and in which order.

    Attributes:
        images: The clean test images, in the order of the settings.
        clean: They as a domain.
    """

    def __init__(self, artifacts: Path, task: Task, settings: DemoSettings) -> None:
        super().__init__(artifacts, "cpu")
        self.images = task.load("test", settings.images)
        self._is_sorted = settings.order == "sorted"
        if self._is_sorted:
            order = np.argsort(self.images.labels, kind="stable")
            pixels, labels = self.images.images[order], self.images.labels[order]
            self.images = replace(self.images, images=pixels, labels=labels)
        self.clean = Domain("clean", self.images.images, self.images.labels)
        self._known: dict[tuple[int, int | None], Data] = {}

    def load_data(self, spec: JobSpec) -> Data:
        """Return the shifts of a job; of fewer images, the first of the shuffled ones."""
        key = (spec.seed, spec.images)
        if key not in self._known:
            self._known[key] = self.read_data(spec)
        return self._known[key]

    def read_data(self, spec: JobSpec) -> Data:
        """Return the shifts of a job, made now."""
        n = len(self.images.labels)
        if spec.images == n:
            groups, about = corrupt_images(self.images, spec.get_request(), spec.seed)
        else:
            whole = self.load_data(replace(spec, images=n))
            order = shuffled(n, None if self._is_sorted else spec.seed)[: spec.images].numpy()
            groups = {
                name: tuple(Domain(own.name, own.x[order], own.y[order]) for own in domains)
                for name, domains in whole.groups.items()
            }
            about = {name: {**own, "n": spec.images} for name, own in whole.descriptions.items()}
        classes = tuple(self.images.classes)
        return Data(spec.data, groups, classes, about, source=spec.data, clean=lambda: self.clean)


def make_suite(task: Task, groups: Sequence[Group], settings: DemoSettings, folder: Path) -> Suite:
    """Return the jobs: groups, methods in them, and seeds.

    Args:
        task: The task.
        groups: Of methods that are compared with each other.
        settings: What to run.
        folder: For files that jobs need.
    """
    order = "file" if settings.order == "sorted" else "shuffled"
    entries = []
    for group in groups:
        model = group.model.load()
        head = None
        if group.model.load_head is not None:
            head = folder / f"{group.model.name}.head"
            write_head(head, group.model.load_head(), model, {})
        shared: dict[str, Any] = {
            "model": model,
            "data": task.data,
            "corruptions": settings.corruptions,
            "severities": (settings.severity,),
            "images": group.n_images,
            # What is cut has been shuffled before.
            "protocol": {
                "batch_size": settings.batch_size,
                "order": "file" if group.is_cut else order,
            },
            "prepare": Preparing(
                source=task.data,
                images=settings.n_source,
                parts={"penalty": {"n_samples": settings.n_penalty}},
                contrast_head=None if head is None else str(head),
            ),
            "reveal_labels": settings.reveal_labels,
            "keep": {} if group.is_cut else {"predictions": _count_last(settings)},
        }
        entries += [
            Entry(JobSpec(**shared, method=method, seed=seed), method, group.name)
            for method in group.methods
            for seed in range(settings.seeds)
        ]
    return Suite(title=settings.command, entries=tuple(entries))


def _prepare_all(
    suite: Suite,
    groups: Sequence[Group],
    loader: DemoLoader,
    settings: DemoSettings,
    report: Progress,
) -> dict[SourceModel, tuple[Artifact, ...]]:
    """Prepare the artifacts of all jobs; return those of each source model, one per seed."""
    by_group = {group.name: group.model for group in groups}
    first = suite.entries[0].spec
    found: dict[SourceModel, tuple[Artifact, ...]] = {}
    for source in dict.fromkeys(group.model for group in groups):
        specs = [own.spec for own in suite.entries if by_group[own.group] == source]
        joined = []
        for seed in range(settings.seeds):
            words = [source.name] * bool(found) + [f"seed {seed}"] * (settings.seeds > 1)
            loader.progress = _name_stages(report, words)
            own = [spec for spec in specs if spec.seed == seed]
            if not found:
                own.insert(0, replace(first, method=_SHOWN, seed=seed))
            if not any(spec.artifact_key for spec in own):
                own.append(replace(own[0], method=_SHOWN))
            data = loader.load_data(own[0])
            model = loader.load_model(own[0], len(data.classes))
            pieces = {
                spec.artifact_key: loader.get_artifact(replace(spec, model=model), model, data)
                for spec in own
            }
            joined.append(join([piece for piece in pieces.values() if piece is not None]))
        found[source] = tuple(joined)
    return found


def _measure_clean(source: SourceModel, clean: Domain, settings: DemoSettings) -> float:
    """Return the error of a source model without a shift, as a share."""
    stream = reset_each([clean], settings.batch_size)
    return evaluate(adapt(source.load(), BASELINE), stream).error


def _read_predictions(
    folder: Path, outcome: Outcome, settings: DemoSettings
) -> dict[str, torch.Tensor]:
    """Return the predictions of the last batch of each shift."""
    return {
        name: read_kept(folder / outcome.folder, place)["predictions"]
        for place, name in enumerate(settings.corruptions)
    }


def _count_last(settings: DemoSettings) -> int:
    """Return the number of images of the last batch."""
    return (settings.images - 1) % settings.batch_size + 1


def _name_stages(report: Progress, words: Sequence[str]) -> Progress:
    """Add to every stage what it is done for."""
    return lambda stage, done, total: report(", ".join([stage, *words]), done, total)


def _name_stream(report: Progress) -> Progress:
    """Report batches as one stage, from its beginning."""
    has_begun = False

    def move(stage: str, done: int, total: int | None) -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            report("stream", 0, total)
        report("stream", done, total)

    return move
