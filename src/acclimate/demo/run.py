"""Run the demonstration, a suite of methods, shifts and seeds on a small task; what it found."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
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
from acclimate.demo.tasks import DemoSettings, Group, SourceModel, Task, get_task, make_groups
from acclimate.evaluation import evaluate
from acclimate.functional.norm import norm_parameters
from acclimate.methods import get_method
from acclimate.parts.contrastive_head import write_head
from acclimate.progress import Progress
from acclimate.report import (
    BASELINE,
    DemoPage,
    Layer,
    Sample,
    Summary,
    headlines,
    summarize,
)
from acclimate.report.stats import margin
from acclimate.snapshot import fingerprint
from acclimate.streams import Domain, reset_each
from acclimate.streams.cutting import shuffled

#: Images of each shift that are kept to be shown.
N_SAMPLES = 4
#: The page shows what this method's artifact contains, if any method needs an artifact.
_SHOWN = "swr_nsp"


@dataclass(frozen=True)
class UsedModel:
    """A source model that methods stood on.

    Attributes:
        source: Which one.
        artifacts: One per seed; none if no method needs one.
        clean_error: Its error on the same images without a shift, as a share.
        sha256: Of the weights.
    """

    source: SourceModel
    artifacts: tuple[Artifact, ...]
    clean_error: float
    sha256: str


@dataclass(frozen=True)
class DemoResult:
    """What came out.

    Attributes:
        settings: What was run.
        task: What it was run on.
        groups: The methods that can be compared with each other.
        models: The source models that they stood on, the task's first one first.
        outcomes: Of every method with every seed, group by group.
        layers: The penalty of each parameter of the first model, for all seeds; none without an
            artifact.
        samples: The first images of the last batch of each shift, with the first seed.
        provenance: Command, date, versions, hash of the model, cores, seconds taken.
    """

    settings: DemoSettings
    task: Task
    groups: tuple[Group, ...]
    models: tuple[UsedModel, ...]
    outcomes: tuple[Outcome, ...]
    layers: tuple[Layer, ...]
    samples: tuple[Sample, ...]
    provenance: dict[str, Any]

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """Those of the first model, one per seed."""
        return self.models[0].artifacts

    @property
    def clean_error(self) -> float:
        """Error of the first source model without a shift, as a share."""
        return self.models[0].clean_error

    @cached_property
    def summary(self) -> Summary:
        """Errors of every method on every shift, and speed, group by group."""
        return summarize(self.outcomes)

    @property
    def finding(self) -> str:
        """What the numbers show, in a sentence for each group."""
        return " ".join(headlines(self.summary))

    @property
    def notes(self) -> tuple[str, ...]:
        """What sets the groups after the first apart, and what follows from it."""
        notes = []
        for group in self.groups:
            guests, is_one = " and ".join(group.guests), len(group.guests) == 1
            if group.model != self.task.models[0]:
                used = next(model for model in self.models if model.source == group.model)
                notes.append(
                    f"({group.name}): {guests} {'needs' if is_one else 'need'} another source "
                    f"model: {group.model.text}. Without a shift it errs on "
                    f"{100 * used.clean_error:.1f} %."
                )
            if group.is_cut:
                notes.append(
                    f"({group.name}): {guests} {'was' if is_one else 'were'} measured on the first "
                    f"{group.n_images} images of each shift only, for the time it takes; an error "
                    f"there is uncertain by up to ±{margin(group.n_images):.1f} points (95 %)."
                )
        if notes:
            notes.append(
                "Rows of such a group are compared with the source row of the same group only."
            )
        return tuple(notes)

    @property
    def protocol(self) -> dict[str, str]:
        """How it was measured: a short heading and a sentence for each choice."""
        settings = self.settings
        names = ", ".join(settings.corruptions)
        after = [name for name in settings.methods if get_method(name).card.predicts == "after"]
        exceptions = f"; for {', '.join(after)} those after it" if after else ""
        seeds = "0" if settings.seeds == 1 else f"0 to {settings.seeds - 1}"
        several = len(self.models) > 1
        prepared = {
            "artifact": f"prepared from {settings.n_source} training images, penalty on "
            f"{settings.n_penalty} of them{'; one for each source model' * several}"
        }
        orders = {"shuffled": "shuffled by the seed", "sorted": "one class after the other"}
        order = "the order, " * (settings.order == "shuffled")
        return {
            "data": f"{self.task.text}, 32×32 pixels; the first {settings.images} test images for "
            f"every shift and seed",
            "shifts": f"{names}, at severity {settings.severity} of 5",
            "order": f"{orders[settings.order]}, the same for all methods; batches of "
            f"{settings.batch_size}",
            "reset": "to the source model before each shift",
            "predictions": f"those from before the update on the batch{exceptions}",
            "options": "each method's defaults, as published; nothing was tuned on this task",
            **(prepared if self.artifacts else {}),
            "seeds": f"{seeds}; a seed sets {order}the corruptions, and the draws of methods "
            "and artifact",
            "time": "of the call that predicts and adapts, after one call to warm up; all methods "
            f"side by side{', but those with a mark after the others' * bool(self.notes)}",
        }

    @property
    def origin(self) -> dict[str, str]:
        """Where the numbers come from: a short heading and a value for each fact."""
        facts = self.provenance
        seconds, data = facts["seconds"], facts["data"]
        models = {
            f"model ({model.source.name})" if number else "model": model
            for number, model in enumerate(self.models)
        }
        return {
            "command": facts["command"],
            "images": f"{data['name']}, {data['source']}, SHA-256 of the pixels {data['sha256']}",
            **{
                name: f"{model.source.text}, SHA-256 of the weights {model.sha256}"
                for name, model in models.items()
            },
            "versions": ", ".join(f"{name} {value}" for name, value in facts["versions"].items()),
            "machine": f"{facts['n_cores']} cores; torch uses {facts['n_threads']}",
            "duration": f"{seconds['all']:.0f} s: {seconds['prepare']:.0f} s preparing, "
            f"{seconds['stream']:.0f} s streaming",
            "date": facts["date"],
        }

    def page(self) -> DemoPage:
        """Return what the page shows."""
        return DemoPage(
            task=self.task.text,
            clean_error=self.clean_error,
            summary=self.summary,
            layers=self.layers,
            samples=self.samples,
            protocol=self.protocol,
            provenance=self.origin,
            notes=self.notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as JSON types; errors in percent."""
        return {
            "finding": self.finding,
            "provenance": self.provenance,
            "settings": asdict(self.settings),
            "protocol": self.protocol,
            "clean_error": _percent(self.clean_error),
            "models": [
                {
                    "name": model.source.name,
                    "text": model.source.text,
                    "sha256": model.sha256,
                    "clean_error": _percent(model.clean_error),
                }
                for model in self.models
            ],
            "groups": [
                {
                    "name": group.name,
                    "model": group.model.name,
                    "methods": list(group.methods),
                    "n_images": group.n_images,
                }
                for group in self.groups
            ],
            "notes": list(self.notes),
            "table": [row.to_dict() for _, row in self.summary.rows],
            "runs": [_describe(own) for own in self.outcomes],
            "layers": [asdict(layer) for layer in self.layers],
        }

    def to_json(self) -> str:
        """Return the numbers as JSON text, with one line for each row, run and layer."""
        lines = []
        for key, value in self.to_dict().items():
            if isinstance(value, list):
                items = ",\n  ".join(json.dumps(_rounded(item)) for item in value)
                lines.append(f"{json.dumps(key)}: [\n  {items}\n ]")
            else:
                lines.append(f"{json.dumps(key)}: {json.dumps(_rounded(value), indent=2)}")
        return "{\n " + ",\n ".join(lines) + "\n}\n"


def _describe(outcome: Outcome) -> dict[str, Any]:
    entry, result = outcome.entry, outcome.result
    errors: dict[str, list[float]] = {}
    for record in result.records:
        errors.setdefault(record.domain, []).append(_percent(record.n_errors / record.n))
    return {
        "method": entry.label,
        "group": entry.group,
        "seed": entry.spec.seed,
        "n_images": result.n_images // len(result.error_by_domain),
        "error": _percent(result.error),
        "error_by_domain": {
            name: _percent(share) for name, share in result.error_by_domain.items()
        },
        "error_by_batch": errors,
        "ms_per_batch": result.ms_per_batch,
        "n_skipped": max(record.n_skipped for record in result.records),
    }


def _percent(share: float) -> float:
    return round(100 * share, 4)


def _rounded(value: Any) -> Any:
    """Cut numbers to four decimals, inside any nesting."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


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
        loader = DemoLoader(Path(folder), task, settings)
        suite = loader.make_suite(groups)
        artifacts = loader.prepare_all(suite, groups, report)
        prepared = time.perf_counter()
        compared = run_side_by_side(
            suite,
            folder,
            loader,
            options=RunOptions(command=settings.command),
            progress=_name_stream(report),
        )
        samples = loader.get_samples(compared.outcomes)
        stream = reset_each([loader.clean], settings.batch_size)
        used = tuple(
            UsedModel(
                source,
                own,
                evaluate(adapt(source.load(), BASELINE), stream).error,
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
    """Makes the jobs, and provides the images of a task, corrupted with the seed of each job.

    `images` are the clean test images in the order of the settings, `clean` the same as a domain.
    """

    def __init__(self, folder: Path, task: Task, settings: DemoSettings) -> None:
        super().__init__(folder / ARTIFACTS, "cpu")
        self._folder, self._task, self._settings = folder, task, settings
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

    def make_suite(self, groups: Sequence[Group]) -> Suite:
        """Return the jobs: methods in groups, and seeds; the folder takes files that they need."""
        settings, task = self._settings, self._task
        order = "file" if self._is_sorted else "shuffled"
        n_last = (settings.images - 1) % settings.batch_size + 1  # images of the last batch
        entries = []
        for group in groups:
            model = group.model.load()
            head = None
            if group.model.load_head is not None:
                head = self._folder / f"{group.model.name}.head"
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

    def prepare_all(
        self, suite: Suite, groups: Sequence[Group], report: Progress
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
            for seed in range(self._settings.seeds):
                words = [source.name] * bool(found) + [f"seed {seed}"] * (self._settings.seeds > 1)
                self.progress = _name_stages(report, words)
                own = [spec for spec in specs if spec.seed == seed]
                if is_needed and not found:
                    own.insert(0, replace(first, method=_SHOWN, seed=seed))
                data = self.load_data(own[0])
                model = self.load_model(own[0], len(data.classes))
                pieces = {
                    spec.artifact_key: self.get_artifact(replace(spec, model=model), model, data)
                    for spec in own
                }
                if made := [piece for piece in pieces.values() if piece is not None]:
                    joined.append(join(made))
            found[source] = tuple(joined)
        self.progress = None
        return found

    def get_samples(self, outcomes: Sequence[Outcome]) -> tuple[Sample, ...]:
        """Return the first images of the last batch of each shift, with seed 0."""
        settings, seed = self._settings, None if self._is_sorted else 0
        data, size = self.load_data(outcomes[0].entry.spec), settings.batch_size
        last_clean = list(reset_each([self.clean], size, seed=seed))[-1]
        last = {batch.domain: batch for batch in reset_each(data.domains, size, seed=seed)}
        shown: list[tuple[str, Mapping[str, Tensor]]] = []
        for own in outcomes:
            entry = own.entry
            if entry.spec.seed == 0 and entry.spec.images == settings.images:
                kept = {
                    name: read_kept(self._folder / own.folder, place)["predictions"]
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
    penalties, of_norms = [own.part("penalty") for own in artifacts], norm_parameters(model)

    def describe(name: str, parameter: Tensor) -> str:
        if name in of_norms:
            return f"normalisation, {'scale' if name.endswith('weight') else 'shift'}"
        return {1: "head, bias", 4: "convolution"}.get(parameter.dim(), "head, weight")

    return tuple(
        Layer(name, describe(name, parameter), tuple(float(own[name]) for own in penalties))
        for name, parameter in model.named_parameters()
        if penalties and name in penalties[0]
    )


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
