"""What a job is made of: its model, its data and its artifact, each loaded or made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor, nn

from acclimate.artifact import Artifact
from acclimate.bench.spec import JobSpec
from acclimate.comparison import Data, Preparation, load_data
from acclimate.errors import ArtifactMissing, BadInput
from acclimate.preparation import prepare
from acclimate.progress import Progress
from acclimate.zoo.named import get_device, load_named

#: Inputs and class numbers, in batches, as often as needed.
Labelled = Iterable[tuple[Tensor, Tensor]]

WAITING = "waiting for an artifact that another process makes"

#: Seconds between two looks at whether another process has made an artifact.
_LOOK_EVERY = 0.2


class Materials:
    """Loads what jobs need, and keeps the last of each: jobs that share it come one after another.

    Args:
        artifacts: Folder of the artifacts, which several processes may share.
        device: Where models are put: `auto`, `cpu`, `cuda` or `mps`.
        progress: Called with the stage, the count done and the count to do; what it raises ends
            the work.
    """

    def __init__(
        self, artifacts: str | Path, device: str = "auto", progress: Progress | None = None
    ) -> None:
        self.artifacts = Path(artifacts)
        self.device = get_device(device)
        self.progress = progress
        self._kept: dict[str, tuple[Any, Any]] = {}

    def load_data(self, spec: JobSpec) -> Data:
        """Return the data of a job."""
        key = spec.data_key
        if self._find("data", key) is None:
            self._kept["data"] = key, self.read_data(spec)
        found: Data = self._find("data", key)
        return found

    def read_data(self, spec: JobSpec) -> Data:
        """Return the data of a job as it is on disk."""
        return load_data(spec.data, replace(spec.get_request(), progress=self.progress))

    def load_model(self, spec: JobSpec, n_classes: int) -> nn.Module:
        """Return the model of a job, which must not be changed: others will get it, too."""
        key = (spec.model, spec.weights, n_classes)
        if self._find("model", key) is None:
            model = load_named(spec.model, spec.weights, n_classes)
            self._kept["model"] = key, model.to(self.device)
        found: nn.Module = self._find("model", key)
        return found

    def get_artifact(self, spec: JobSpec, model: nn.Module, data: Data) -> Artifact | None:
        """Return the artifact of a job: from its file, or made now; None if none is needed.

        Whoever comes first makes it, the others wait. If that one dies, the next one takes over.
        """
        key = spec.artifact_key
        if key is None:
            return None
        if self._find("artifact", key) is None:
            pieces = [
                self._load_or_make(own, spec, model, data, parts)
                for own, parts in spec.get_pieces().items()
            ]
            self._kept["artifact"] = key, join(pieces)
        found: Artifact = self._find("artifact", key)
        return found

    def list_files(self, spec: JobSpec) -> list[Path]:
        """Return the files that the artifact of a job is kept in."""
        return [self.artifacts / f"{key}.acclimate" for key in spec.get_pieces()]

    def _find(self, what: str, key: Any) -> Any:
        known, value = self._kept.get(what, (None, None))
        return value if known == key else None

    def _load_or_make(
        self, key: str, spec: JobSpec, model: nn.Module, data: Data, parts: Sequence[str]
    ) -> Artifact:
        path = self.artifacts / f"{key}.acclimate"
        if path.is_file():
            return Artifact.load(path)
        with claim(path, lambda: self._tell(WAITING)):
            if not path.is_file():
                self._tell("preparing an artifact")
                self._prepare(spec, model, data, parts).save(path)
            return Artifact.load(path)

    def open_source(self, spec: JobSpec, data: Data) -> tuple[Labelled, Sequence[str]]:
        """Return the labelled batches that an artifact is prepared from, and their classes."""
        how = spec.prepare
        source = how.source or (data.source if how.domains is None else spec.data)
        if source is None:
            raise ArtifactMissing(
                "artifact_needed",
                f"{spec.method} needs an artifact, but {data.name} does not define the training "
                f'images to prepare it from. Pass them: prepare = {{ source = "cifar10" }}, or a '
                "folder; for data with several domains, the domains that the model was trained "
                f'on: prepare = {{ domains = {{ names = ["photo"], part = "train" }} }}.',
                methods=(spec.method,),
            )
        preparation = Preparation(
            source=source,
            n=how.images,
            size=spec.get_size(),
            classes=data.classes,
            seed=_seed(spec),
            domains=how.domains,
            ignore_label=spec.ignore_label,
        )
        return preparation.open(spec.get_wrapping().info.normalization)

    def _prepare(
        self, spec: JobSpec, model: nn.Module, data: Data, parts: Sequence[str]
    ) -> Artifact:
        how = spec.prepare
        batches, classes = self.open_source(spec, data)
        options = how.options()
        pace: Any = how.speed
        return prepare(
            model,
            batches,
            parts=[options.get(name, name) for name in parts],
            info=spec.get_wrapping().info,
            classes=classes,
            seed=_seed(spec),
            speed=pace,
            progress=self.progress or False,
        )

    def _tell(self, stage: str) -> None:
        if self.progress is not None:
            self.progress(stage, 0, None)


def join(pieces: Sequence[Artifact]) -> Artifact:
    """Return one artifact with the parts of several that were prepared for one model."""
    tensors = {name: tensor for piece in pieces for name, tensor in piece.tensors.items()}
    parts = {name: card for piece in pieces for name, card in piece.parts.items()}
    return Artifact(tensors, {**pieces[0].card, "parts": parts})


@contextmanager
def claim(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Keep others from making an artifact; waits as long as another one does.

    Args:
        path: Of the artifact, which may be there when the waiting is over.
        on_wait: Called again and again while waiting; what it raises ends that.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            "not_writable",
            f"Cannot create {path.parent} ({error.strerror}). Pass another folder with --out or "
            "--artifacts.",
            path=path.parent,
        ) from error
    lock = FileLock(path.with_suffix(".lock"))
    while not lock.is_locked:
        try:
            lock.acquire(timeout=_LOOK_EVERY)
        except Timeout:
            on_wait()
    try:
        yield
    finally:
        lock.release()


def _seed(spec: JobSpec) -> int:
    return spec.seed if spec.prepare.seed is None else spec.prepare.seed
