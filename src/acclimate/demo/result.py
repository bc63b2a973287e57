"""What the demonstration found, as a report and as plain numbers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from acclimate.artifact import Artifact
from acclimate.bench.suite import Outcome
from acclimate.demo.tasks import DemoSettings, Group, SourceModel, Task
from acclimate.methods import get_method
from acclimate.report import DemoPage, Layer, Sample, Summary, headlines, summarize
from acclimate.report.stats import margin


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
