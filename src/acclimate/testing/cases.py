"""Test cases: a method on a tiny model."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from torch import nn

from acclimate.adaptation import adapt
from acclimate.artifact import Artifact
from acclimate.functional.norm import norm_parameters
from acclimate.introspect import inspect_model
from acclimate.methods import get_method
from acclimate.methods.method import Method
from acclimate.parts import Accuracy, Contrast, Part, Penalty, Prototypes
from acclimate.parts.contrastive_head import build_contrastive_head
from acclimate.preparation import prepare
from acclimate.testing.dense_models import DENSE_MODELS, tiny_masks
from acclimate.testing.models import MODEL_INFO, tiny_batches, tiny_model

#: Options with which a method learns quickly on a few tiny batches.
METHOD_OPTIONS: dict[str, dict[str, Any]] = {
    "cotta": {"n_augmentations": 3},
    "memo": {"n_copies": 4},
    # The variance of the few weights of a tiny model would take long to grow.
    "cmf": {"drift": 20.0},
    "eta": {"max_entropy": 1.5, "max_similarity": 1.1},
    "eata": {"max_entropy": 1.5, "max_similarity": 1.1},
    "rdumb": {"max_entropy": 1.5, "max_similarity": 1.1, "reset_every": 2},
    "sar": {"max_entropy": 1.5},
    # The running statistics of tiny models do not match the tiny data: published learning rates
    # diverge.
    "tfa": {"lr": 1e-5},
    "ttt_pp": {"lr": 1e-5, "views": "crop+flip"},
    "deyo": {"max_entropy": 1.5, "min_drop": -1.0},
    "tribe": {"max_entropy": 1.5},
    "note": {"update_every": 8, "memory_size": 16},
    "rotta": {"update_every": 8, "memory_size": 16},
    "petta": {"memory_size": 16},
}


class Violation(AssertionError):
    """A method violates a part of the contract."""


@dataclass(frozen=True)
class Case:
    """A method on a tiny model."""

    method: str
    model: str

    def build(self, **options: Any) -> Method:
        """Adapt a new copy of the model."""
        return self.wrap(tiny_model(self.model), **options)

    def wrap(self, model: nn.Module, **options: Any) -> Method:
        """Adapt the given model."""
        kind = get_method(self.method)
        asked = {"guard", "terms"} & set(options)
        artifact = None
        if kind.needs or asked:
            artifact = tiny_artifact(self.model, guarded="guard" in options)
        named = {}
        if artifact is None and self.model in MODEL_INFO:
            named = {"info": dataclasses.replace(MODEL_INFO[self.model], logits_at=1)}
        return adapt(
            model,
            self.method,
            artifact,
            **{**named, **METHOD_OPTIONS.get(self.method, {}), **options},
        )

    @property
    def suits(self) -> bool:
        """Whether the method claims to support the model."""
        kind = get_method(self.method)
        if self.is_dense and not kind.card.dense:
            return False
        return not kind.check(tiny_model(self.model), kind.config_class())

    @property
    def is_dense(self) -> bool:
        """Whether the model predicts every pixel."""
        return self.model in DENSE_MODELS


@functools.cache
def tiny_artifact(model: str, depth: int = 0, guarded: bool = False) -> Artifact:
    """Prepare a tiny model once, with all parts that it supports.

    Args:
        model: Name of the model.
        depth: Number of layers of the projector.
        guarded: Whether the part that a guard needs is prepared too.
    """
    net = tiny_model(model)
    if guarded:
        plain = tiny_artifact(model, depth)
        source = tiny_masks(8) if model in DENSE_MODELS else tiny_batches(8)
        part = Accuracy(n_samples=64, severities=(5,), n_runs=4)
        added = prepare(net, source, parts=[part], info=MODEL_INFO.get(model))
        card = {**plain.card, "parts": {**plain.parts, **added.parts}}
        return Artifact({**plain.tensors, **added.tensors}, card)
    prototypes = Prototypes(depth=depth, width=8, hidden=8, epochs=1)
    if model in DENSE_MODELS and depth:
        prototypes = dataclasses.replace(prototypes, views="test")
    parts: list[str | Part] = [
        Penalty(n_samples=16),
        prototypes,
        "features",
        "mirror",
        "confidence",
    ]
    if model in DENSE_MODELS:
        return prepare(net, tiny_masks(4), parts=parts)
    info = inspect_model(net, tiny_batches(1)[0][0], MODEL_INFO.get(model))
    parts += ["fisher"] if norm_parameters(net) else []
    parts.append(Contrast(head=build_contrastive_head(info.known_width, 8, 4)))
    return prepare(net, tiny_batches(4), parts=parts, info=MODEL_INFO.get(model))
