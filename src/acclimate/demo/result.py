"""What the demonstration found, as a report and as plain numbers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from acclimate.artifact import Artifact
from acclimate.demo.settings import DemoSettings
from acclimate.demo.tasks import Task
from acclimate.methods import get_method
from acclimate.report import (
    Layer,
    MethodNote,
    Report,
    Run,
    Sample,
    Table,
    count_wins,
    describe,
    summarize,
)


@dataclass(frozen=True)
class DemoResult:
    """What came out.

    Attributes:
        settings: What was run.
        task: What it was run on.
        runs: Every method with every seed.
        artifacts: One a seed.
        layers: The penalty of each parameter, for all seeds.
        samples: The first images of the last batch of each shift, with the first seed.
        clean_error: Error of the source model without a shift, as a share.
        provenance: Command, date, versions, hash of the model, cores, seconds taken.
    """

    settings: DemoSettings
    task: Task
    runs: tuple[Run, ...]
    artifacts: tuple[Artifact, ...]
    layers: tuple[Layer, ...]
    samples: tuple[Sample, ...]
    clean_error: float
    provenance: dict[str, Any]

    @property
    def table(self) -> Table:
        """Errors of every method on every shift, and speed."""
        return summarize(self.runs)

    @property
    def finding(self) -> str:
        """What the numbers show, in one or two sentences."""
        return f"{describe(self.table)} {count_wins(self.runs)}".strip()

    @property
    def protocol(self) -> dict[str, str]:
        """How it was measured: a short heading and a sentence for each choice."""
        settings = self.settings
        names = ", ".join(settings.corruptions)
        after = [name for name in settings.methods if get_method(name).predicts == "after"]
        exceptions = f"; for {', '.join(after)} those after it" if after else ""
        seeds = "0" if settings.seeds == 1 else f"0 to {settings.seeds - 1}"
        return {
            "data": f"{self.task.text}, 32×32 pixels; the first {settings.images} test images for "
            f"every shift and seed",
            "shifts": f"{names}, at severity {settings.severity} of 5",
            "order": f"shuffled by the seed, the same for all methods; batches of "
            f"{settings.batch_size}",
            "reset": "before each shift: every shift is met by the source model",
            "predictions": f"those from before the update on the batch{exceptions}",
            "options": "each method's defaults, as published; nothing was tuned on this task",
            "artifact": f"prepared from {settings.n_source} training images, penalty on "
            f"{settings.n_penalty} of them",
            "seeds": f"{seeds}; a seed sets the order, the corruptions, and the draws of methods "
            "and artifact",
            "time": "of the call that predicts and adapts, after one call to warm up; all methods "
            "side by side",
        }

    @property
    def origin(self) -> dict[str, str]:
        """Where the numbers come from: a short heading and a value for each fact."""
        facts = self.provenance
        seconds, data = facts["seconds"], facts["data"]
        return {
            "command": facts["command"],
            "images": f"{data['name']}, {data['source']}, SHA-256 of the pixels {data['sha256']}",
            "model": f"{self.task.model_text}, SHA-256 of the weights {facts['model_sha256']}",
            "versions": ", ".join(f"{name} {value}" for name, value in facts["versions"].items()),
            "machine": f"{facts['n_cores']} cores; torch uses {facts['n_threads']}",
            "duration": f"{seconds['all']:.0f} s: {seconds['prepare']:.0f} s preparing, "
            f"{seconds['stream']:.0f} s streaming",
            "date": facts["date"],
        }

    def report(self) -> Report:
        """Return what the page shows."""
        return Report(
            task=self.task.text,
            clean_error=self.clean_error,
            runs=self.runs,
            methods=tuple(describe_method(name) for name in self.settings.methods),
            layers=self.layers,
            samples=self.samples,
            protocol=self.protocol,
            provenance=self.origin,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as JSON types; errors in percent."""
        return {
            "finding": self.finding,
            "provenance": self.provenance,
            "settings": asdict(self.settings),
            "protocol": self.protocol,
            "clean_error": _percent(self.clean_error),
            "table": [asdict(row) for row in self.table.rows],
            "runs": [_run(run) for run in self.runs],
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


def describe_method(name: str) -> MethodNote:
    """Return a method's first sentence, its paper and what a batch costs."""
    method = get_method(name)
    sentence = (method.__doc__ or name).partition("\n")[0].strip()
    if method.reconstruction:
        sentence += f" A reconstruction: {method.reconstruction}."
    forwards = f"{method.forwards} forward{'s' if method.forwards > 1 else ''}"
    backwards = f" and {method.backwards} backward" if method.backwards else ""
    return MethodNote(name, sentence, method.paper, f"A batch costs {forwards}{backwards}.")


def _run(run: Run) -> dict[str, Any]:
    errors: dict[str, list[float]] = {}
    for record in run.result.records:
        errors.setdefault(record.domain, []).append(_percent(record.n_errors / record.n))
    return {
        "method": run.method,
        "seed": run.seed,
        "error": _percent(run.result.error),
        "error_by_domain": {
            name: _percent(share) for name, share in run.result.error_by_domain.items()
        },
        "error_by_batch": errors,
        "ms_per_batch": run.result.ms_per_batch,
        "n_skipped": max(record.n_skipped for record in run.result.records),
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
