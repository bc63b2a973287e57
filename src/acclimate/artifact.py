"""The artifact: what was computed on source data for one model, in one file."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from acclimate._version import __version__
from acclimate.errors import ArtifactMismatch, ArtifactMissing
from acclimate.functional.inputs import Normalization
from acclimate.snapshot import fingerprint
from acclimate.storage import read_file, warn_unknown, write_file
from acclimate.taps import Anatomy

_FIELDS = (
    "model",
    "anatomy",
    "classes",
    "input_shape",
    "normalization",
    "seed",
    "parts",
    "versions",
)
_SHOWN_MISMATCHES = 12


@dataclass(frozen=True)
class Artifact:
    """Penalties, prototypes and statistics of the source, for one model.

    Made by `acclimate.prepare`, needed by `acclimate.adapt`.

    Attributes:
        tensors: By name, `<part>/<name>`: `penalty/<parameter>`, `cosine/<parameter>`,
            `prototypes/...`, `projector/...`, `features/...`, `predictions/...`,
            `fisher/<parameter>`, `contrast/...`, `contrast_head/...`.
        card: What they are: the model's fingerprint, head and classes, input shape and
            normalisation, seed, options and sample counts of each part, library versions.
    """

    tensors: dict[str, Tensor]
    card: dict[str, Any]

    def save(self, path: str | Path) -> None:
        """Write the artifact as one file, atomically."""
        write_file(path, "artifact", self.tensors, self.card)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an artifact; a damaged, foreign or newer file is refused with the reason."""
        tensors, card = read_file(path, "artifact")
        warn_unknown(path, card, _FIELDS)
        return cls(tensors, {key: value for key, value in card.items() if key in _FIELDS})

    @property
    def anatomy(self) -> Anatomy:
        """Head, place of the logits, number of classes and width of the features."""
        known = {spec.name for spec in fields(Anatomy)}
        return Anatomy(**{k: v for k, v in self.card["anatomy"].items() if k in known})

    @property
    def classes(self) -> list[str] | None:
        """Names of the classes in the order of the logits, if they were given."""
        names: list[str] | None = self.card["classes"]
        return names

    @property
    def normalization(self) -> Normalization | None:
        """How the inputs of the model are normalised; None for images in [0, 1]."""
        value = self.card["normalization"]
        return None if value is None else Normalization.from_dict(value)

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """The options and sample counts of each part that was prepared."""
        parts: dict[str, dict[str, Any]] = self.card["parts"]
        return parts

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors whose name starts with `name/`, by the rest of their name."""
        prefix = f"{name}/"
        found = {
            key.removeprefix(prefix): tensor
            for key, tensor in self.tensors.items()
            if key.startswith(prefix)
        }
        if not found:
            raise ArtifactMissing(
                f'the artifact has no part "{name}" (it has: {", ".join(self.parts) or "none"}). '
                "Prepare again with that part: acclimate.prepare(model, source, parts=...)."
            )
        return found

    def check(self, model: nn.Module) -> None:
        """Refuse a model other than the one this artifact was prepared for.

        Raises:
            ArtifactMismatch: With every difference found.
        """
        found, expected = fingerprint(model), self.card["model"]
        differences = list(_layout_differences(expected["layout"], found["layout"]))
        if not differences and found["weights_sha256"] != expected["weights_sha256"]:
            differences = [
                "names and shapes agree, but the weights differ "
                f"(SHA-256 {expected['weights_sha256'][:12]}…, found "
                f"{found['weights_sha256'][:12]}…)"
            ]
        if differences:
            shown = "".join(f"\n  {line}" for line in differences[:_SHOWN_MISMATCHES])
            rest = len(differences) - _SHOWN_MISMATCHES
            more = f"\n  (+ {rest} more)" if rest > 0 else ""
            raise ArtifactMismatch(
                f"this artifact was prepared for another model.{shown}{more}\n"
                "Prepare again with acclimate.prepare(model, source), or load the weights it was "
                "prepared for; a model that is being adapted must be reset() or unwrap()ped first."
            )

    def __repr__(self) -> str:
        anatomy = self.card["anatomy"]
        return (
            f"Artifact(classes={anatomy['n_classes']}, head={anatomy['head']!r}, "
            f"parts={sorted(self.parts)}, model={self.card['model']['weights_sha256'][:12]})"
        )


def versions() -> dict[str, str]:
    """Return the versions of what computes: acclimate, torch, numpy, Python."""
    return {
        "acclimate": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _layout_differences(expected: dict[str, Any], found: dict[str, Any]) -> Iterable[str]:
    for name in expected:
        if name not in found:
            yield f"{name}: artifact {_layout(expected[name])}, not in the model"
        elif list(expected[name]) != list(found[name]):
            yield f"{name}: artifact {_layout(expected[name])}, model {_layout(found[name])}"
    for name in found:
        if name not in expected:
            yield f"{name}: not in the artifact, model {_layout(found[name])}"


def _layout(entry: list[Any]) -> str:
    dtype, *shape = entry
    return f"{tuple(shape)} {dtype}"
