"""Where numbers come from: checksums, settings, versions, machine and time.

One builder serves everything that is measured: jobs of suites, `acclimate eval` and the demo.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import acclimate
from acclimate.bench.protocol import OWN_ORDERS, RESET_EACH, Protocol
from acclimate.data.request import Data
from acclimate.errors import BadInput
from acclimate.evaluation import Result
from acclimate.methods.compute import Speed
from acclimate.methods.method import Method
from acclimate.storage import digest, file_digest, versions
from acclimate.zoo.named import is_own

if TYPE_CHECKING:
    from acclimate.bench.load import Job

# Characters of a checksum that distinguish one folder, or one state of the code, from others.
_LENGTH = 16
# Those settings of a job that the provenance does not state elsewhere.
_SETTINGS = ("protocol", "speed", "channels_last", "device", "seeds", "reveal_labels")


# Checksums ---------------------------------------------------------------------------------------


def file_sha256(path: str) -> str:
    """Return the SHA-256 of a file, computed again only if the file was changed."""
    try:
        found = Path(path).stat()
    except OSError as error:
        raise BadInput(
            "unreadable",
            f"Expected a file of weights at {path}, which cannot be read ({error.strerror}). "
            "Correct the path, or copy the file there.",
            path=path,
        ) from error
    if not Path(path).is_file():
        text = f"Expected a file of weights at {path}, found a folder. Pass a file in it."
        raise BadInput("not_a_file", text, path=path)
    return _known_sha256(str(Path(path).resolve()), found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=64)
def _known_sha256(path: str, size: int, changed: int) -> str:
    return file_digest(Path(path))


def model_code_sha256(model: str) -> str | None:
    """Return a checksum of the file that defines a user's own model `package.module:function`.

    None for other models, or if there is no such file. What it imports is not included.
    """
    module = model.partition(":")[0]
    if not is_own(model) or ":" not in model or module.split(".")[0] == acclimate.__name__:
        return None
    here = str(Path.cwd())
    if here not in sys.path:  # where models are looked for, too
        sys.path.insert(0, here)
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return None
    return file_sha256(found.origin)[:_LENGTH]


@lru_cache(maxsize=64)
def folder_id(path: str) -> str:
    """Return what distinguishes a folder from others of its name, wherever it is.

    This is a checksum of the names and sizes of its files, which takes no reading; checksums of
    their content are in the result of a job. It is computed once per process.
    """
    walk = os.walk(path, followlinks=True)
    files = (Path(folder, name) for folder, _, names in walk for name in names)
    lines = [f"{own.relative_to(path)} {own.stat().st_size}" for own in files if own.is_file()]
    text = "\n".join(sorted(lines)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:_LENGTH]


@lru_cache(maxsize=1)
def code_sha256() -> str:
    """Return a checksum of this package's own code, which its version alone does not identify."""
    root = Path(acclimate.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:_LENGTH]


# Time and memory ---------------------------------------------------------------------------------


class RunLog:
    """What the time of a job was spent on, in seconds, and what this package warned of."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.by_name: dict[str, float] = {}
        self.checkpoints = 0.0
        self._start = self._last = time.perf_counter()

    def note(self, name: str) -> None:
        """Count the time since the last note under this name."""
        now = time.perf_counter()
        self.by_name[name] = self.by_name.get(name, 0.0) + now - self._last
        self._last = now

    def sum_up(self, result: Result) -> dict[str, float]:
        """Return the seconds of each, of the method's own calls, and of all of this process.

        The calls are those of the whole job, also where it was interrupted and resumed.
        """
        method = sum(record.ms for record in result.records) / 1000
        total = time.perf_counter() - self._start
        found = {"checkpoints": self.checkpoints, "method": method, "total": total}
        return {name: round(value, 4) for name, value in (self.by_name | found).items()}


def forget_peak() -> None:
    """Let the peak of memory be that of this job, not of one that the process ran before.

    Only Linux can; elsewhere the peak remains that of the process so far.
    """
    if not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc keeps what was freed
        trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


# Provenance --------------------------------------------------------------------------------------


def describe_origin(command: str, device: torch.device) -> dict[str, Any]:
    """Return when, with what and where numbers were made."""
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "code_sha256": code_sha256(),
        "machine": describe_machine(device),
    }


def describe_stream(job: Job) -> dict[str, Any]:
    """Return what a job was measured on."""
    protocol, data = job.protocol, job.data
    return {
        "protocol_line": protocol.describe(data.groups, job.clean, job.spec.seed),
        "order": describe_order(protocol),
        "reset": describe_resets(protocol),
        "n_images": sum(len(domain) for domain in data.domains),
        "n_unreadable": len(data.unreadable),
        "data_source": data.origin,
        "classes": list(data.classes),
        "data": dict(data.descriptions),
    }


def describe_job(job: Job, adapted: Method, command: str) -> dict[str, Any]:
    """Return everything about a job that a reader of its numbers may ask for, as JSON types."""
    settings, card, weights = describe_settings([job]), adapted.card, job.spec.weights
    return {
        "spec": job.spec.to_dict(),
        **describe_stream(job),
        "predicts": f"{card.predicts} the update",
        "model": {
            "name": job.spec.model_name,
            "file": None if weights is None else str(Path(weights)),
            "file_sha256": None if weights is None else file_digest(weights),
            "weights_sha256": job.weights_sha256,
            "n_parameters": sum(parameter.numel() for parameter in job.model.parameters()),
        },
        "method": {
            "name": adapted.name,
            "config": adapted.config.to_dict(),
            **{term.name: term.to_dict() for term in adapted.added_terms},
            "moves": card.moves,
            "predicts": card.predicts,
            "is_oracle": card.is_oracle,
            "reconstruction": card.reconstruction,
        },
        "artifact": _describe_artifact(job),
        "settings": {name: settings[name] for name in _SETTINGS},
        **describe_origin(command, job.device),
    }


def _describe_artifact(job: Job) -> dict[str, Any] | None:
    spec, artifact = job.spec, job.artifact
    if artifact is None:
        return None
    made = ", ".join(f"{key}.acclimate" for key in spec.get_pieces())
    return {
        "key": spec.artifact_key,
        "file": made if spec.prepare.artifact is None else Path(spec.prepare.artifact).name,
        "sha256": digest(artifact.tensors),
        "seed": artifact.card["seed"],
        "parts": artifact.parts,
        "versions": artifact.card["versions"],
    }


def describe_settings(jobs: Sequence[Job]) -> dict[str, Any]:
    """Return everything that changes the numbers of jobs on one stream, as JSON types."""
    first, labels = jobs[0], dict.fromkeys(job.spec.label for job in jobs)
    by_label = {label: next(job for job in jobs if job.spec.label == label) for label in labels}
    spec, about = first.spec, first.info.to_dict()
    artifacts = {
        name: job.spec.artifact_key if job.artifact is None else digest(job.artifact.tensors)
        for name, job in by_label.items()
    }
    return {
        "model": first.weights_sha256,
        "device": first.device.type,
        "channels_last": first.channels_last,
        "speed": Speed.of(spec.speed).to_dict(),
        **{name: about[name] for name in ("normalization", "head", "logits_at")},
        "artifact": {name: found for name, found in artifacts.items() if found} or None,
        "methods": {
            name: {
                **job.spec.get_config().to_dict(),
                **{term.name: term.to_dict() for term in job.spec.get_terms()},
            }
            for name, job in by_label.items()
        },
        "protocol": first.protocol.to_dict(),
        "seeds": list(dict.fromkeys(job.spec.seed for job in jobs)),
        "reveal_labels": spec.reveal_labels,
        "data": {"name": first.data.name, **describe_data(first.data)},
        "versions": versions(),
        **({"guard": spec.guard} if spec.guard else {}),
    }


def describe_data(data: Data) -> dict[str, Any]:
    """Return the classes, and what identifies the images of each domain."""
    return {
        "classes": list(data.classes),
        # Where a folder is changes nothing: it may have been moved.
        "domains": {
            name: {key: value for key, value in about.items() if key != "folder"}
            for name, about in data.descriptions.items()
        },
    }


def describe_resets(protocol: Protocol) -> str:
    """Return when the method is reset."""
    if protocol.episodic:
        return "before each batch"
    return "before each domain" if protocol.stream in RESET_EACH else "at the start only"


def describe_order(protocol: Protocol) -> str:
    """Return the order of the samples of a domain."""
    if protocol.stream in OWN_ORDERS:
        return f"that of the stream {protocol.stream}"
    return "shuffled by the seed" if protocol.order == "shuffled" else "as in the files"


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return what decides the speed of the numbers and their rounding."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "n_cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
