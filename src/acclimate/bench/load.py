"""From the plain data of a job to its model, data and artifact, loaded or made once and checked."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from acclimate.adaptation import adapt
from acclimate.artifact import Artifact
from acclimate.bench.job import GUARDED, JobSpec
from acclimate.bench.protocol import Protocol, Unit
from acclimate.bench.provenance import RunLog
from acclimate.data.loading import Preparation, load_data
from acclimate.data.request import Data
from acclimate.errors import (
    AcclimateWarning,
    ArtifactMissing,
    BadInput,
    UnsuitableModel,
)
from acclimate.forward import get_logits
from acclimate.functional.pixels import IGNORE_LABEL
from acclimate.introspect import ModelInfo, suits_channels_last, try_forward
from acclimate.methods import get_method
from acclimate.methods.compute import Speed
from acclimate.methods.config import Config
from acclimate.methods.method import Method
from acclimate.parts.contrastive_head import HOW_TO_TRAIN
from acclimate.preparation import prepare
from acclimate.progress import Progress
from acclimate.snapshot import fingerprint
from acclimate.storage import make_folder
from acclimate.streams import Batch, Domain
from acclimate.zoo.named import find_classes, get_device, load_named

#: Inputs and class numbers, in batches, as often as needed.
Labelled = Iterable[tuple[Tensor, Tensor]]
Kept = TypeVar("Kept")

#: Seconds between two looks at whether another process has made an artifact.
_LOOK_EVERY = 0.2


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job with everything it needs."""

    spec: JobSpec
    model: nn.Module  # the source model, which must not be changed
    weights_sha256: str
    data: Data
    info: ModelInfo  # images of the stream are in [0, 1]: the normalisation is applied to them
    artifact: Artifact | None = None
    channels_last: bool = True  # half as fast again on a processor; rounding differs

    @property
    def protocol(self) -> Protocol:
        """How the stream is run."""
        return self.spec.get_protocol()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters(), torch.empty(0)).device

    @property
    def clean(self) -> Domain | None:
        """The clean images, if the protocol needs them and they are known."""
        if not self.protocol.needs_clean or self.data.clean is None:
            return None
        return self.data.clean()

    def units(self) -> tuple[Unit, ...]:
        """Return the stream in parts that start with a reset."""
        return self.protocol.units(self.data.groups, self.clean, self.spec.seed)

    def wrap(self) -> Method:
        """Return a copy of the model, wrapped by the method."""
        spec, own = self.spec, copy.deepcopy(self.model)
        if self.channels_last:
            own = own.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return adapt(
            own,
            spec.method,
            self.artifact,
            config=spec.get_config(),
            terms=spec.get_terms(),
            info=self.info,
            seed=spec.seed,
            speed=Speed.of(spec.speed),
            guard=spec.guard,
        )

    @property
    def form(self) -> tuple[Any, ...]:
        """How images must be given to the model: jobs of one form can share them."""
        like = next(self.model.parameters(), torch.empty(0))
        normal = self.info.normalization
        return like.dtype, like.device, None if normal is None else str(normal.to_dict())

    def feed(self, batch: Batch) -> Batch:
        """Return a batch as the model takes it: normalised, in its precision, on its device."""
        dtype, device, _ = self.form
        normal = self.info.normalization
        x = batch.x if normal is None else normal.normalize(batch.x)
        return replace(batch, x=x.to(device=device, dtype=dtype))


class Loader:
    """Loads what jobs need, and keeps the last of each: jobs that share it follow each other."""

    def __init__(
        self,
        artifacts: str | Path,
        device: str = "auto",
        progress: Progress | None = None,
        root: str | Path | None = None,
    ) -> None:
        self.artifacts = Path(artifacts)
        self.device = get_device(device)
        self.progress, self.root = progress, root
        self._kept: dict[str, tuple[Any, Any]] = {}

    def load(self, spec: JobSpec, log: RunLog | None = None) -> Job:
        """Return a job with everything it needs, after checking it."""
        log, job = log or RunLog(), self.open(spec)
        log.note("loading")
        job = self.complete(job)
        log.note("artifact")
        return job

    def complete(self, job: Job) -> Job:
        """Return an opened job with its artifact, which is prepared now if need be."""
        artifact = self.get_artifact(job.spec, job.model, job.data)
        return job if artifact is None else check_job(replace(job, artifact=artifact))

    def open(self, spec: JobSpec) -> Job:
        """Return a job that can be run, but for an artifact that must be prepared for it."""
        data = self.load_data(spec)
        for option, is_unused, what in (
            ("size", spec.size is not None and not data.is_folder, "folders of images"),
            ("ignore_label", spec.ignore_label != IGNORE_LABEL and not data.palette, "masks"),
        ):
            if is_unused:
                raise BadInput(
                    "not_applicable",
                    f"The option {option} applies only to {what}, which {data.name} does not have. "
                    "Remove it.",
                    option=option,
                )
        if spec.get_needs() and spec.prepare.artifact is None:
            self._plan_preparation(spec, data)
        model = self.load_model(spec, len(data.classes))
        artifact = None
        if spec.prepare.artifact is not None:
            artifact = self.get_artifact(spec, model, data)
            if artifact is not None:
                artifact.check(model)
        key = self._kept["model"][0]
        sha256 = self._once("fingerprint", key, lambda: fingerprint(model)["weights_sha256"])
        known: dict[str, Any] = {"weights_sha256": sha256, "data": data, "artifact": artifact}
        return check_job(Job(spec=spec, model=model, info=spec.get_info(), **known))

    def load_data(self, spec: JobSpec) -> Data:
        """Return the data of a job."""
        return self._once("data", spec.data_key, lambda: self.read_data(spec))

    def read_data(self, spec: JobSpec) -> Data:
        """Return the data of a job as it is on disk."""
        more = {"classes": spec.get_classes(), "progress": self.progress, "root": self.root}
        return load_data(spec.data, spec.get_request(**more))

    def load_model(self, spec: JobSpec, n_classes: int) -> nn.Module:
        """Return the model of a job, which must not be changed: other jobs get it, too."""

        def load() -> nn.Module:
            if isinstance(spec.model, nn.Module):
                return spec.model  # where the caller has put it
            spec.check_portable()
            return load_named(spec.model, spec.weights, n_classes).to(self.device)

        return self._once("model", (spec.model, spec.weights, n_classes), load)

    def get_artifact(self, spec: JobSpec, model: nn.Module, data: Data) -> Artifact | None:
        """Return the artifact of a job: from its file, or made now; None if none is needed.

        The first process that needs it makes it, the others wait. If that one dies, the next one
        takes over.
        """
        if spec.prepare.artifact is not None:
            path = spec.prepare.artifact
            return self._once("artifact", path, lambda: Artifact.load(path))
        key = spec.artifact_key
        if key is None:
            return None

        def load() -> Artifact:
            pieces = spec.get_pieces()
            return join([self._load_or_make(own, spec, model, data, pieces[own]) for own in pieces])

        return self._once("artifact", key, load)

    def open_source(self, spec: JobSpec, data: Data) -> tuple[Labelled, Sequence[str]]:
        """Return the labelled batches that an artifact is prepared from, and their classes."""
        return self._plan_preparation(spec, data).open(spec.get_info().normalization)

    def _plan_preparation(self, spec: JobSpec, data: Data) -> Preparation:
        how = spec.prepare
        source = how.source or (data.source if how.domains is None else spec.data)
        if source is None:
            needy = spec.method if set(spec.get_needs()) != {GUARDED} else "the guard"
            raise ArtifactMissing(
                "artifact_needed",
                f"{needy} needs an artifact, but {data.name} does not define the training images "
                "to prepare it from. Pass them: --source-data DIR, or in a suite: prepare = "
                '{ source = "cifar10" } or a folder; for data with several domains, the domains '
                'that the model was trained on: prepare = { domains = { names = ["photo"], part = '
                '"train" } }. Or pass what acclimate prepare wrote: --artifact FILE.',
                methods=() if needy == "the guard" else (spec.method,),
            )
        return Preparation(
            source=source,
            n=how.images,
            size=spec.get_size(),
            classes=data.classes,
            root=self.root,
            seed=spec.prepare_seed,
            domains=how.domains,
            ignore_label=spec.ignore_label,
        )

    def _once(self, what: str, key: Any, make: Callable[[], Kept]) -> Kept:
        if what not in self._kept or self._kept[what][0] != key:
            self._kept.pop(what, None)  # the memory may be needed
            self._kept[what] = key, make()
        value: Kept = self._kept[what][1]
        return value

    def _load_or_make(
        self, key: str, spec: JobSpec, model: nn.Module, data: Data, parts: Sequence[str]
    ) -> Artifact:
        path = self.artifacts / f"{key}.acclimate"
        if not path.is_file():
            make_folder(path.parent, "Pass another folder with --out or --artifacts.")
        while not path.is_file():
            try:
                with FileLock(path.with_suffix(".lock"), timeout=_LOOK_EVERY):
                    if not path.is_file():
                        self._report("preparing an artifact")
                        batches, classes = self.open_source(spec, data)
                        options = spec.prepare.options()
                        prepare(
                            model,
                            batches,
                            parts=[options.get(name, name) for name in parts],
                            info=spec.get_info(),
                            classes=classes,
                            seed=spec.prepare_seed,
                            speed=spec.prepare.speed,  # type: ignore[arg-type]
                            progress=self.progress or False,
                        ).save(path)
            except Timeout:
                self._report("waiting for an artifact that another process makes")
        return Artifact.load(path)

    def _report(self, stage: str) -> None:
        if self.progress is not None:
            self.progress(stage, 0, None)


def join(pieces: Sequence[Artifact]) -> Artifact:
    """Return one artifact with the parts of several that were prepared for one model."""
    tensors = {name: tensor for piece in pieces for name, tensor in piece.tensors.items()}
    parts = {name: card for piece in pieces for name, card in piece.parts.items()}
    return Artifact(tensors, {**pieces[0].card, "parts": parts})


def check_job(job: Job) -> Job:
    """Refuse what cannot be run; return the job, with the memory format that fits the model."""
    spec, data = job.spec, job.data
    if job.protocol.needs_clean and data.clean is None:
        text = f'The data set "{data.name}" has no clean images. {job.protocol.without_clean}'
        raise BadInput("no_clean_images", text, name=data.name)
    classes, at = list(data.classes), job.info.logits_at
    if job.artifact is not None:
        at = job.artifact.info.logits_at if at is None else at
        known = job.artifact.classes
        if known is not None and known != classes:
            raise BadInput(
                "class_mismatch",
                f"The artifact was prepared with the classes {_shorten(known)}, but "
                f"{data.name} has {_shorten(classes)}. Use data with the same classes in the "
                "same order.",
                found=tuple(classes),
                expected=tuple(known),
            )
    x, _ = data.domains[0].take(torch.arange(min(2, len(data.domains[0]))))
    normal = job.info.normalization
    x = (x if normal is None else normal.normalize(x)).to(next(job.model.parameters(), x))
    logits = get_logits(try_forward(job.model, x), at)
    n_logits = logits.shape[1]
    if n_logits != len(classes):
        raise BadInput(
            "count_mismatch",
            f"Expected data with {n_logits} classes, the number of logits of the model, found "
            f"{len(classes)} in {data.name}: {_shorten(classes)}. Use data with the classes "
            "of the model, or pass all class names in the order of the logits with --classes "
            "(classes = in a suite).",
            expected=n_logits,
            found=len(classes),
        )
    if spec.weights is not None:
        _compare_classes(find_classes(spec.weights), data)
    configs = {spec.method: spec.get_config()}
    unsuitable = find_unsuitable(
        job.model,
        configs,
        job.artifact,
        has_head=spec.prepare.contrast_head is not None,
        predicts_pixels=logits.dim() == 4,
    )
    if unsuitable:
        raise refuse_methods(unsuitable)
    fits = x.device.type == "cpu" and suits_channels_last(job.model, x)
    return replace(job, channels_last=job.channels_last and fits)


def refuse_methods(reasons: Mapping[str, str]) -> UnsuitableModel:
    """Return the error that names all methods that cannot adapt a model, with their reasons."""
    lines = "".join(f"\n  {name}: {reason}" for name, reason in reasons.items())
    return UnsuitableModel(
        "method_refused",
        f"{', '.join(reasons)} cannot adapt this model.{lines}\nRemove these methods, or provide "
        "what they need.",
        methods=tuple(reasons),
        reasons=dict(reasons),
    )


def find_unsuitable(
    model: nn.Module,
    configs: Mapping[str, Config],
    artifact: Artifact | None = None,
    has_head: bool = False,
    predicts_pixels: bool = False,
) -> dict[str, str]:
    """Return the methods that cannot adapt the model, each with the reason.

    Args:
        model: A trained classifier.
        configs: The options of each method.
        artifact: What is known of the source; None if it is prepared later, which gives all parts.
        has_head: Whether the projection head of a jointly trained model is available for that.
        predicts_pixels: Whether the model predicts every pixel.
    """
    parts = {} if artifact is None else artifact.parts
    if "contrast" in parts:
        has_head = parts["contrast"]["head"] is not None
    found = {}
    for name, config in configs.items():
        kind = get_method(name)
        missing = [
            part for part in kind.needed_parts() if artifact is not None and part not in parts
        ]
        if predicts_pixels and not kind.card.dense:
            reasons = ["it predicts whole images only, and this model predicts every pixel"]
        else:
            reasons = [str(problem) for problem in kind.check(model, config)]
            if missing:
                reasons.append(
                    f"it needs {', '.join(missing)}, which the artifact does not contain. Prepare "
                    f"one with access to the source data: acclimate prepare SOURCE_DIR --method "
                    f"{name} …"
                )
            elif getattr(kind, "needs_contrast_head", False) and not has_head:
                reasons.append(f"it needs an artifact with a projection head. {HOW_TO_TRAIN}")
        if reasons:
            found[name] = "; ".join(reasons)
    return found


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
