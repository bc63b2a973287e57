"""Where the numbers of a job come from: all that a reader needs to judge or to repeat them."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from acclimate.artifact import Artifact
from acclimate.bench.hashes import code_sha256
from acclimate.bench.spec import JobSpec
from acclimate.comparison import OWN_ORDERS, RESET_EACH, Job, Protocol
from acclimate.evaluation import Result
from acclimate.methods.method import Method
from acclimate.snapshot import fingerprint
from acclimate.storage import digest, versions
from acclimate.streams import Domain
from acclimate.zoo.readers import sha256_of

# Those settings of a comparison that are not told elsewhere.
_SETTINGS = ("protocol", "speed", "channels_last", "device", "seeds", "reveal_labels")


class Spent:
    """What the time of a job went to, in seconds.

    Attributes:
        by_name: Of what comes before the measuring.
        checkpoints: Spent on writing these.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, float] = {}
        self.checkpoints = 0.0
        self._start = self._last = time.perf_counter()

    def note(self, name: str) -> None:
        """Count the time since the last note under this name."""
        now = time.perf_counter()
        self.by_name[name] = now - self._last
        self._last = now

    def sum_up(self, result: Result) -> dict[str, float]:
        """Return the seconds of each, of the method's own calls, and of all of this process.

        The calls are those of the whole job, also where it was cut and went on.
        """
        found = {
            **self.by_name,
            "checkpoints": self.checkpoints,
            "method": sum(record.ms for record in result.records) / 1000,
            "total": time.perf_counter() - self._start,
        }
        return {name: round(value, 4) for name, value in found.items()}


def describe_origin(
    spec: JobSpec,
    job: Job,
    adapted: Method,
    clean: Domain | None,
    command: str,
    artifact_files: Sequence[Path],
) -> dict[str, Any]:
    """Return everything about a job that a reader of its numbers may ask for, as JSON types."""
    protocol, data = job.protocol, job.data
    settings = job.settings()
    return {
        "spec": spec.to_dict(),
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "protocol_line": protocol.describe(data.groups, clean, spec.seed),
        "order": describe_order(protocol),
        "reset": describe_resets(protocol),
        "predicts": f"{adapted.card.predicts} the update",
        "n_images": sum(len(domain) for domain in data.domains),
        "n_unreadable": len(data.unreadable),
        "data_source": data.origin,
        "data": dict(data.descriptions),
        "model": _describe_model(spec, job),
        "method": _describe_method(adapted),
        "artifact": _describe_artifact(spec, job.wrapping.artifact, artifact_files),
        "settings": {name: settings[name] for name in _SETTINGS},
        "versions": versions(),
        "code_sha256": code_sha256(),
        "machine": describe_machine(next(job.model.parameters(), torch.empty(0)).device),
    }


def describe_resets(protocol: Protocol) -> str:
    """Return when the method forgets what it has learned."""
    if protocol.episodic:
        return "before each batch"
    return "before each domain" if protocol.stream in RESET_EACH else "at the start only"


def describe_order(protocol: Protocol) -> str:
    """Return in which order the samples of a domain come."""
    if protocol.stream in OWN_ORDERS:
        return f"that of the stream {protocol.stream}"
    return "shuffled by the seed" if protocol.order == "shuffled" else "as in the files"


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return what decides how fast the numbers came, and how they were rounded."""
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


def _describe_model(spec: JobSpec, job: Job) -> dict[str, Any]:
    file = None if spec.weights is None else Path(spec.weights)
    return {
        "name": spec.model,
        "file": None if file is None else str(file),
        "file_sha256": None if file is None else sha256_of(file),
        "weights_sha256": fingerprint(job.model)["weights_sha256"],
        "n_parameters": sum(parameter.numel() for parameter in job.model.parameters()),
    }


def _describe_method(adapted: Method) -> dict[str, Any]:
    return {
        "name": adapted.name,
        "config": adapted.config.to_dict(),
        **{term.name: term.to_dict() for term in adapted.added_terms},
        "moves": adapted.card.moves,
        "predicts": adapted.card.predicts,
        "is_oracle": adapted.card.is_oracle,
        "reconstruction": adapted.card.reconstruction,
    }


def _describe_artifact(
    spec: JobSpec, artifact: Artifact | None, files: Sequence[Path]
) -> dict[str, Any] | None:
    if artifact is None:
        return None
    return {
        "key": spec.artifact_key,
        "file": ", ".join(file.name for file in files),
        "sha256": digest(artifact.tensors),
        "seed": artifact.card["seed"],
        "parts": artifact.parts,
        "versions": artifact.card["versions"],
    }
