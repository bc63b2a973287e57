"""Run the demonstration: a suite of methods, shifts and seeds, side by side, on a small task."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from acclimate.adaptation import adapt
from acclimate.artifact import Artifact
from acclimate.bench.execute import RunOptions, read_kept, run_side_by_side
from acclimate.bench.job import JobSpec, Preparing
from acclimate.bench.load import Loader, join
from acclimate.bench.suite import ARTIFACTS, Entry, Outcome, Suite
from acclimate.data.datasets import corrupt_store
from acclimate.data.request import Data, gather
from acclimate.demo.result import DemoResult, UsedModel
from acclimate.demo.tasks import DemoSettings, Group, SourceModel, Task, get_task, make_groups
from acclimate.evaluation import evaluate
from acclimate.functional.norm import norm_parameters
from acclimate.parts.contrastive_head import write_head
from acclimate.progress import Progress
from acclimate.report import BASELINE, Layer, Sample
from acclimate.snapshot import fingerprint
from acclimate.streams import Domain, reset_each
from acclimate.streams.cutting import shuffled

#: Images of each shift that are kept to be shown.
N_SAMPLES = 4
#: The page shows what this method's artifact contains, if any method needs an artifact.
_SHOWN = "swr_nsp"


def run_demo(
    settings: DemoSettings, progress: Progress | None = None, task: Task | None = None
) -> DemoResult:
    """Prepare the models of a task, then stream every shift through every method.

    `task` is another one than the settings name, such as one with another model.
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
        samples = _get_samples(loader, suite, Path(folder), compared.outcomes, settings)
        used = tuple(
            UsedModel(
                source,
                own,
                _measure_clean(source, loader.clean, settings),
                str(fingerprint(source.load())["weights_sha256"]),
            )
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
        layers=_get_layers(task.models[0].load(), used[0].artifacts),
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

    `images` are the clean test images in the order of the settings, `clean` the same as a domain.
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
            asked = spec.get_request()
            made = asked.shifts(partial(corrupt_store, self.images, seed=spec.seed))
            data = gather(spec.data, made, asked, is_folder=False)
            groups, about = data.groups, data.descriptions
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
    """Return the jobs: methods in groups, and seeds; the folder takes files that they need."""
    order = "file" if settings.order == "sorted" else "shuffled"
    n_last = (settings.images - 1) % settings.batch_size + 1  # images of the last batch
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
            "keep": {} if group.is_cut else {"predictions": n_last},
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
    """Prepare the artifacts of all jobs; return those of each source model, one per seed.

    A model has none if no method on it needs one.
    """
    by_group = {group.name: group.model for group in groups}
    first = suite.entries[0].spec
    is_needed = any(own.spec.artifact_key for own in suite.entries)
    found: dict[SourceModel, tuple[Artifact, ...]] = {}
    for source in dict.fromkeys(group.model for group in groups):
        specs = [own.spec for own in suite.entries if by_group[own.group] == source]
        joined = []
        for seed in range(settings.seeds):
            words = [source.name] * bool(found) + [f"seed {seed}"] * (settings.seeds > 1)
            loader.progress = _name_stages(report, words)
            own = [spec for spec in specs if spec.seed == seed]
            if is_needed and not found:
                own.insert(0, replace(first, method=_SHOWN, seed=seed))
            data = loader.load_data(own[0])
            model = loader.load_model(own[0], len(data.classes))
            pieces = {
                spec.artifact_key: loader.get_artifact(replace(spec, model=model), model, data)
                for spec in own
            }
            if made := [piece for piece in pieces.values() if piece is not None]:
                joined.append(join(made))
        found[source] = tuple(joined)
    return found


def _measure_clean(source: SourceModel, clean: Domain, settings: DemoSettings) -> float:
    """Return the error of a source model without a shift, as a share."""
    stream = reset_each([clean], settings.batch_size)
    return evaluate(adapt(source.load(), BASELINE), stream).error


def _get_samples(
    loader: DemoLoader,
    suite: Suite,
    folder: Path,
    outcomes: Sequence[Outcome],
    settings: DemoSettings,
) -> tuple[Sample, ...]:
    """Return the first images of the last batch of each shift, with seed 0."""
    data, size = loader.load_data(suite.entries[0].spec), settings.batch_size
    seed = None if settings.order == "sorted" else 0
    last_clean = list(reset_each([loader.clean], size, seed=seed))[-1]
    last = {batch.domain: batch for batch in reset_each(data.domains, size, seed=seed)}
    shown: list[tuple[str, Mapping[str, Tensor]]] = []
    for own in outcomes:
        entry = own.entry
        if entry.spec.seed == 0 and entry.spec.images == settings.images:
            kept = {
                name: read_kept(folder / own.folder, place)["predictions"]
                for place, name in enumerate(settings.corruptions)
            }
            name = f"{entry.label} ({entry.group})" if entry.group else entry.label
            shown.append((name, kept))
    return tuple(
        Sample(
            domain=domain,
            clean=_to_png(last_clean.x[index]),
            shifted=_to_png(batch.x[index]),
            truth=data.classes[int(batch.y[index])],
            predictions={name: data.classes[int(kept[domain][index])] for name, kept in shown},
        )
        for domain, batch in last.items()
        for index in range(min(N_SAMPLES, len(batch.x)))
    )


def _to_png(image: Tensor) -> bytes:
    pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return file.getvalue()


def _get_layers(model: nn.Module, artifacts: Sequence[Artifact]) -> tuple[Layer, ...]:
    """Return the penalty of each parameter, in the order of the model; none without artifacts."""
    penalties = [artifact.part("penalty") for artifact in artifacts]
    if not penalties:
        return ()
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
