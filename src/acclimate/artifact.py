"""The artifact: everything computed on source data for one model, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from acclimate.errors import (
    ArtifactMismatch,
    ArtifactMissing,
    ArtifactVersion,
    CorruptFile,
    list_lines,
)
from acclimate.functional.inputs import Normalization
from acclimate.introspect import ModelInfo
from acclimate.parts.part import PARTS, Saved
from acclimate.schema import Anything, Fields, Items, Maybe, Number, Schema, Where
from acclimate.snapshot import fingerprint
from acclimate.storage import read_file, warn_unknown, write_file

_FIELDS = (
    "model",
    "info",
    "classes",
    "input_shape",
    "seed",
    "parts",
    "versions",
)
_COUNT = Number(int, low=1)
_CARD = Fields(
    {
        "model": Fields(
            {
                "layout": Items(
                    Where(
                        Items(Anything(), list, longest=64),
                        lambda entry: (
                            len(entry) > 0
                            and isinstance(entry[0], str)
                            and all(type(size) is int for size in entry[1:])
                        ),
                        "not a type and a shape",
                    )
                ),
                "weights_sha256": Number(str),
            }
        ),
        "info": Fields(
            {
                "head": Maybe(Number(str)),
                "logits_at": Anything(),
                "normalization": Anything(),
                "images_at": Anything(),
                "n_classes": Maybe(_COUNT),
                "n_features": Maybe(_COUNT),
                "is_dense": Number(bool),
            },
            partial=True,
        ),
        "classes": Maybe(Items(Number(str), list)),
        "input_shape": Items(_COUNT, list, longest=8),
        "seed": Number(int),
        "parts": Items(Items(Anything())),
        "versions": Items(Number(str)),
    }
)


@dataclass(frozen=True)
class Artifact:
    """Penalties, prototypes and statistics of the source, for one model.

    It is made by `acclimate.prepare` and used by `acclimate.adapt`.

    Attributes:
        tensors: Tensors by name, `<part>/<name>`: `penalty/<parameter>`, `cosine/<parameter>`,
            `prototypes/...`, `projector/...`, `features/...`, `predictions/...`,
            `fisher/<parameter>`, `contrast/...`, `contrast_head/...`.
        card: Metadata: the model's fingerprint, head and classes, input shape and normalisation,
            seed, options and sample counts of each part, library versions.
    """

    tensors: dict[str, Tensor]
    card: dict[str, Any]

    def save(self, path: str | Path, key: bytes | str | None = None) -> None:
        """Write the artifact as one file, atomically; sign it with a key (HMAC-SHA256)."""
        write_file(path, "artifact", self.tensors, self.card, key)

    @classmethod
    def load(cls, path: str | Path, key: bytes | str | None = None) -> Self:
        """Read an artifact; refuse a damaged, foreign or newer file with the reason.

        It must be signed with the key; None accepts signed and unsigned files.
        """
        tensors, card = read_file(path, "artifact", key)
        if "info" not in card:
            raise ArtifactVersion(
                "older_format",
                f"{path} was written by a version of acclimate before 0.2, whose artifacts have "
                "another layout. Prepare the model again: acclimate.prepare(model, source).",
                path=path,
            )
        problems = _CARD.find_problems({key: card[key] for key in _FIELDS if key in card})
        problems = problems or _find_part_problems(tensors, card)
        if problems:
            raise CorruptFile(
                "wrong_content",
                f"{path} is not a complete artifact: {'; '.join(problems[:12])}. "
                "Prepare the model again: acclimate.prepare(model, source).",
                path=path,
            )
        warn_unknown(path, card, _FIELDS)
        return cls(tensors, {key: value for key, value in card.items() if key in _FIELDS})

    @property
    def info(self) -> ModelInfo:
        """Facts about the model: head, location of the logits, normalisation, classes."""
        known = {spec.name for spec in fields(ModelInfo)}
        return ModelInfo(**{k: v for k, v in self.card["info"].items() if k in known})

    @property
    def classes(self) -> list[str] | None:
        """Class names in the order of the logits, if they were given."""
        names: list[str] | None = self.card["classes"]
        return names

    @property
    def normalization(self) -> Normalization | None:
        """Normalisation of the model's inputs; None for images in [0, 1]."""
        normalization: Normalization | None = self.info.normalization
        return normalization

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
                f'Expected an artifact with the part "{name}", found the parts '
                f"{', '.join(self.parts) or 'none'}. Prepare again with that part: "
                "acclimate.prepare(model, source, parts=...).",
                parts=(name,),
            )
        return found

    def check(self, model: nn.Module) -> None:
        """Refuse a model other than the one this artifact was prepared for."""
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
            raise ArtifactMismatch(
                "other_model",
                f"This artifact was prepared for another model.{list_lines(lines)}\n"
                "Prepare again with acclimate.prepare(model, source), or load the weights that it "
                "was prepared for. If the model is being adapted, call reset() or unwrap() first.",
                differences=differences,
            )

    def __repr__(self) -> str:
        info = self.card["info"]
        return (
            f"Artifact(classes={info['n_classes']}, head={info['head']!r}, "
            f"parts={sorted(self.parts)}, model={self.card['model']['weights_sha256'][:12]})"
        )


def _find_part_problems(tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the parts: their entries in the card, then their tensors."""
    parts, info = card["parts"], card["info"]
    kinds = {name: PARTS[name] for name in parts if name in PARTS}
    cards = Fields({n: kind.card_schema for n, kind in kinds.items()}, others=Anything())
    if problems := cards.find_problems(parts):
        return problems
    shapes = {name: tuple(shape) for name, (_, *shape) in card["model"]["layout"].items()}
    schemas: dict[str, Schema] = {}
    is_complete = True
    for name, entry in parts.items():
        found = None
        if name in kinds:
            saved = Saved(tensors.keys(), entry, shapes, info.get("n_features"))
            found = kinds[name].tensor_schemas(saved)
        is_complete &= found is not None
        schemas |= found or {}
    sizes = {"classes": info.get("n_classes"), "features": info.get("n_features")}
    known = {name: size for name, size in sizes.items() if size is not None}
    # Custom parts may have tensors of any name.
    others = None if is_complete else Anything()
    problems = Fields(schemas, others=others).find_problems(dict(tensors), known)
    # By now `known` has the sizes that tensors were found with; those who use them ask the info.
    used = {"n_classes": bool(kinds), "n_features": "features" in known}
    return problems + [
        f"info.{name}: missing" for name in used if used[name] and info.get(name) is None
    ]


def _layout_differences(
    expected: dict[str, Any], found: dict[str, Any]
) -> dict[str, tuple[str | None, str | None]]:
    """Return the layout of each differing tensor in the artifact and the model; None if absent."""
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
