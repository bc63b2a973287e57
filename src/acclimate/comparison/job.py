"""A comparison from beginning to end: settings, records as they happen, the result."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import nn

from acclimate.artifact import Artifact
from acclimate.comparison.configs import find_unsuitable
from acclimate.comparison.ledger import Key, Ledger, Part
from acclimate.comparison.protocol import Protocol
from acclimate.comparison.result import Comparison, Run
from acclimate.comparison.run import Finished, Unit, Wrapping, iter_compare
from acclimate.data.loading import Preparation
from acclimate.data.request import Data
from acclimate.errors import AcclimateError, AcclimateWarning, BadInput, UnsuitableModel
from acclimate.evaluation import Result
from acclimate.forward import get_logits
from acclimate.introspect import suits_channels_last, try_forward
from acclimate.methods.config import Config
from acclimate.metrics import BatchMetrics, MetricsWriter, Record
from acclimate.metrics.groups import merge
from acclimate.progress import Progress
from acclimate.snapshot import fingerprint
from acclimate.storage import digest, versions
from acclimate.streams import Domain


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that decides what a comparison gives.

    Attributes:
        model: A trained classifier.
        methods: The options of each method, in the order of the table.
        data: What it is measured on.
        protocol: How.
        wrapping: How the model is wrapped.
        seeds: Of the order, where it is shuffled, and of the draws of methods.
        side_by_side: Whether all methods meet a batch before the next one comes.
        reveal_labels: Whether oracles are shown the labels.
        notes: More that belongs into the result, such as the command and the file of weights.
        preparation: Where to prepare an artifact from, if one is needed and none is given.
        trained_classes: Names in the order of the logits, if the weights say them.
    """

    model: nn.Module
    methods: Mapping[str, Config]
    data: Data
    protocol: Protocol
    wrapping: Wrapping
    seeds: tuple[int, ...] = (0,)
    side_by_side: bool = True
    reveal_labels: bool = False
    notes: Mapping[str, Any] | None = None
    preparation: Preparation | None = None
    trained_classes: tuple[str, ...] | None = None

    @property
    def clean(self) -> Domain | None:
        """The clean images, if the protocol needs them and they are known."""
        if not self.protocol.needs_clean or self.data.clean is None:
            return None
        return self.data.clean()

    def settings(self) -> dict[str, Any]:
        """Return everything that changes numbers, as JSON types."""
        how = self.wrapping
        parameter = next(self.model.parameters(), torch.empty(0))
        if self.preparation is not None:
            artifact: Any = self.preparation.describe(self.methods, how.guard)
        else:
            artifact = None if how.artifact is None else digest(how.artifact.tensors)
        told = how.info.to_dict()
        return {
            "model": fingerprint(self.model)["weights_sha256"],
            "device": parameter.device.type,
            "channels_last": how.channels_last,
            "speed": how.speed.to_dict(),
            **{name: told[name] for name in ("normalization", "head", "logits_at")},
            "artifact": artifact,
            "methods": {name: config.to_dict() for name, config in self.methods.items()},
            "protocol": self.protocol.to_dict(),
            "seeds": list(self.seeds),
            "reveal_labels": self.reveal_labels,
            "data": {
                "name": self.data.name,
                "classes": list(self.data.classes),
                # Where a folder lies changes nothing: it may have been moved.
                "domains": {
                    name: {key: value for key, value in about.items() if key != "folder"}
                    for name, about in self.data.descriptions.items()
                },
            },
            "versions": versions(),
            **({"guard": how.guard} if how.guard else {}),
        }


def check_job(job: Job) -> Job:
    """Refuse what cannot be run before anything is written; return the job, fit for the model.

    Raises:
        BadInput: The model cannot take the images, has another number of logits than the data has
            classes, or the artifact was prepared with other class names, or the weights were
            trained with the same ones in another order; or there are no clean images, and the
            protocol needs them.
        UnsuitableModel: A method cannot adapt this model, or not with this artifact.
    """
    if job.protocol.needs_clean and job.data.clean is None:
        raise BadInput(
            "no_clean_images",
            f'The data set "{job.data.name}" has no clean images. {job.protocol.without_clean}',
            name=job.data.name,
        )
    how, classes = job.wrapping, list(job.data.classes)
    at = how.info.logits_at
    if how.artifact is not None:
        at = how.artifact.info.logits_at if at is None else at
        known = how.artifact.classes
        if known is not None and known != classes:
            raise BadInput(
                "class_mismatch",
                f"The artifact was prepared with the classes {_shorten(known)}, but "
                f"{job.data.name} has {_shorten(classes)}. Use data with the same classes in the "
                "same order.",
                found=tuple(classes),
                expected=tuple(known),
            )
    x, _ = job.data.domains[0].take(torch.arange(min(2, len(job.data.domains[0]))))
    x = x if how.info.normalization is None else how.info.normalization.normalize(x)
    x = x.to(next(job.model.parameters(), x))
    logits = get_logits(try_forward(job.model, x), at)
    n_logits = logits.shape[1]
    if n_logits != len(classes):
        raise BadInput(
            "count_mismatch",
            f"Expected data with {n_logits} classes, the number of logits of the model, found "
            f"{len(classes)} in {job.data.name}: {_shorten(classes)}. Use data with the classes "
            "of the model, or pass all class names in the order of the logits with --classes "
            "(classes = in a suite).",
            expected=n_logits,
            found=len(classes),
        )
    _compare_classes(job.trained_classes, job.data)
    unsuitable = find_unsuitable(
        job.model, job.methods, how.artifact, predicts_pixels=logits.dim() == 4
    )
    if unsuitable:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in unsuitable.items())
        raise UnsuitableModel(
            "method_refused",
            f"{', '.join(unsuitable)} cannot adapt this model.{reasons}\nRemove these methods, or "
            "provide what they need.",
            methods=tuple(unsuitable),
            reasons=unsuitable,
        )
    fits = x.device.type == "cpu" and suits_channels_last(job.model, x)
    return replace(job, wrapping=replace(how, channels_last=how.channels_last and fits))


def _compare_classes(trained: Sequence[str] | None, data: Data) -> None:
    """Refuse data whose classes are numbered otherwise; warn of names that the model never saw."""
    if trained is None or tuple(trained) == data.classes:
        return
    both = (
        f"The weights were trained with the classes {', '.join(trained)}; {data.name} has "
        f"{', '.join(data.classes)}."
    )
    places = {name: place for place, name in enumerate(trained)}
    if any(places.get(name, place) != place for place, name in enumerate(data.classes)):
        raise BadInput(
            "class_mismatch",
            f"{both} Some classes have a different position, so their errors would be counted "
            "incorrectly. Use data with the same classes in the same order, or pass the class "
            "names in the order of the logits with --classes (classes = in a suite).",
            found=data.classes,
            expected=tuple(trained),
        )
    message = f"{both} They are matched by position."
    warnings.warn(AcclimateWarning("classes_by_position", message), stacklevel=3)


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def run_job(
    job: Job,
    ledger: Ledger,
    progress: Progress | None = None,
    metrics: MetricsWriter | None = None,
) -> Comparison:
    """Run what is not recorded yet, and write the result.

    Args:
        job: What to run.
        ledger: Where it is kept; what is complete in it is not run again.
        progress: Called with the stage, the batches done and those to do, of all methods.
        metrics: Writes the metrics of every batch, also of those that were recorded before.
    """
    settings = job.settings()
    ledger.begin(settings)
    try:
        return _run(job, ledger, settings, progress, metrics)
    except AcclimateError:
        ledger.withdraw()  # or else the next try would be taken for another comparison
        raise


def _run(
    job: Job,
    ledger: Ledger,
    settings: Mapping[str, Any],
    progress: Progress | None,
    metrics: MetricsWriter | None,
) -> Comparison:
    job = _provide_artifact(job, ledger, progress)
    clean = job.clean
    units = {seed: job.protocol.units(job.data.groups, clean, seed) for seed in job.seeds}
    parts = _complete(ledger.read(), units, list(job.methods))
    ledger.keep(parts)
    if metrics is not None:
        metrics.begin()
        for (seed, method, _), known in parts.items():
            for record in known.records:
                _write_metrics(metrics, seed, method, record)
    n_done = sum(len(part.records) for part in parts.values())
    n_all = len(job.methods) * sum(unit.n_batches for own in units.values() for unit in own)
    for seed, own in units.items():
        done = [(method, unit) for at, method, unit in parts if at == seed]
        options: dict[str, Any] = {"seed": seed, "done": done, "side_by_side": job.side_by_side}
        options["reveal_labels"] = job.reveal_labels
        for step in iter_compare(job.model, job.methods, own, job.wrapping, **options):
            key = (seed, step.method, step.unit)
            part = parts.setdefault(key, Part())
            if isinstance(step, Finished):
                ledger.close_unit(key, step.sums)
                part.sums = step.sums
                continue
            ledger.append(key, step.record)
            if metrics is not None:
                _write_metrics(metrics, seed, step.method, step.record)
            part.records.append(replace(step.record, predictions=None))
            n_done += 1
            if progress is not None:
                progress("measuring (batches)", n_done, n_all)
    result = Comparison(_gather(job, parts, units), _provenance(job, settings, clean))
    ledger.finish(result.to_dict())
    return result


def _write_metrics(metrics: MetricsWriter, seed: int, method: str, record: Record) -> None:
    metrics.write(BatchMetrics.of_record(record), method=method, seed=seed)


def _provide_artifact(job: Job, ledger: Ledger, progress: Progress | None) -> Job:
    """Prepare the artifact, or take the one that an interrupted call prepared."""
    if job.preparation is None:
        return job
    if ledger.artifact.is_file():
        artifact = Artifact.load(ledger.artifact)
    else:
        artifact = job.preparation.run(job.model, job.methods, job.wrapping, progress)
        artifact.save(ledger.artifact)
    return replace(job, wrapping=replace(job.wrapping, artifact=artifact))


def _complete(
    parts: Mapping[Key, Part], units: Mapping[int, Sequence[Unit]], methods: Sequence[str]
) -> dict[Key, Part]:
    """Return the parts whose records are those of their whole unit."""
    kept: dict[Key, Part] = {}
    for seed, own in units.items():
        offset = 0
        for unit in own:
            places = list(range(offset, offset + unit.n_batches))
            for method in methods:
                part = parts.get((seed, method, unit.name))
                if part is not None and [record.index for record in part.records] == places:
                    kept[seed, method, unit.name] = part
            offset += unit.n_batches
    return kept


def _gather(
    job: Job, parts: Mapping[Key, Part], units: Mapping[int, Sequence[Unit]]
) -> tuple[Run, ...]:
    runs = []
    for method in job.methods:
        for seed in job.seeds:
            own = [parts[seed, method, unit.name] for unit in units[seed]]
            records = tuple(record for part in own for record in part.records)
            sums = merge(pair for part in own for pair in part.sums.items())
            runs.append(Run(method, seed, Result(records, sums)))
    return tuple(runs)


def _provenance(job: Job, settings: Mapping[str, Any], clean: Domain | None) -> dict[str, Any]:
    artifact = job.wrapping.artifact
    return {
        **(job.notes or {}),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "protocol_line": job.protocol.describe(job.data.groups, clean, job.seeds[0]),
        "n_images": sum(len(domain) for domain in job.data.domains),
        "data_source": job.data.origin,
        "data": dict(job.data.descriptions),
        "settings": dict(settings),
        "artifact_sha256": None if artifact is None else digest(artifact.tensors),
        "n_unreadable": len(job.data.unreadable),
        "n_cores": os.cpu_count(),
        "n_threads": torch.get_num_threads(),
        "side_by_side": job.side_by_side,
    }
