"""The artifact: what was computed on source data for one model, in one file."""

from __future__ import annotations

import platform
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
                "missing_parts",
                f'the artifact has no part "{name}" (it has: {", ".join(self.parts) or "none"}). '
                "Prepare again with that part: acclimate.prepare(model, source, parts=...).",
                parts=(name,),
            )
        return found

    def check(self, model: nn.Module) -> None:
        """Refuse a model other than the one this artifact was prepared for.

        Raises:
            ArtifactMismatch: With every difference found.
        """
        found, expected = fingerprint(model), self.card["model"]
        differences = _layout_differences(expected["layout"], found["layout"])
        lines = [_describe(name, *pair) for name, pair in differences.items()]
        before, now = expected["weights_sha256"], found["weights_sha256"]
        if not differences and now != before:
            differences = {"weights_sha256": (before, now)}
            lines = [
                "names and shapes agree, but the weights differ "
                f"(SHA-256 {before[:12]}…, found {now[:12]}…)"
            ]
        if differences:
            shown = "".join(f"\n  {line}" for line in lines[:_SHOWN_MISMATCHES])
            rest = len(lines) - _SHOWN_MISMATCHES
            more = f"\n  (+ {rest} more)" if rest > 0 else ""
            raise ArtifactMismatch(
                "other_model",
                f"this artifact was prepared for another model.{shown}{more}\n"
                "Prepare again with acclimate.prepare(model, source), or load the weights it was "
                "prepared for; a model that is being adapted must be reset() or unwrap()ped first.",
                differences=differences,
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


def _layout_differences(
    expected: dict[str, Any], found: dict[str, Any]
) -> dict[str, tuple[str | None, str | None]]:
    """Return, by name of tensor, its layout in the artifact and in the model; None if absent."""
    names = dict.fromkeys([*expected, *found])
    pairs = {name: (_layout(expected.get(name)), _layout(found.get(name))) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _describe(name: str, prepared: str | None, found: str | None) -> str:
    if found is None:
        return f"{name}: artifact {prepared}, not in the model"
    if prepared is None:
        return f"{name}: not in the artifact, model {found}"
    return f"{name}: artifact {prepared}, model {found}"


def _layout(entry: list[Any] | None) -> str | None:
    if entry is None:
        return None
    dtype, *shape = entry
    return f"{tuple(shape)} {dtype}"
