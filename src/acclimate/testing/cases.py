"""A method on a tiny model, ready to be checked."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from torch import nn

from acclimate.adaptation import adapt
from acclimate.artifact import Artifact
from acclimate.functional.norm import norm_parameters
from acclimate.methods import get_method
from acclimate.methods.base import Method
from acclimate.methods.dense import is_dense
from acclimate.parts.options import PenaltyOptions, PrototypeOptions
from acclimate.preparation import PARTS, prepare
from acclimate.taps import find_anatomy
from acclimate.terms.contrastive_head import build_contrastive_head
from acclimate.testing.dense_models import DENSE_MODELS, tiny_masks
from acclimate.testing.models import MODEL_OPTIONS, tiny_batches, tiny_model

#: What a method needs to learn, and to be quick, on a few tiny batches.
METHOD_OPTIONS: dict[str, dict[str, Any]] = {
    "cotta": {"n_augmentations": 3},
    "memo": {"n_copies": 4},
    "eta": {"max_entropy": 1.5, "max_similarity": 1.1},
    "eata": {"max_entropy": 1.5, "max_similarity": 1.1},
    "rdumb": {"max_entropy": 1.5, "max_similarity": 1.1, "reset_every": 2},
    "sar": {"max_entropy": 1.5},
    # The running statistics of tiny models do not match the tiny data: published rates diverge.
    "tfa": {"lr": 1e-5},
    "ttt_pp": {"lr": 1e-5, "views": "crop+flip"},
    "deyo": {"max_entropy": 1.5, "min_drop": -1.0},
    "note": {"update_every": 8, "memory_size": 16},
    "rotta": {"update_every": 8, "memory_size": 16},
}


class Violation(AssertionError):
    """A method does not hold a part of the contract."""


@dataclass(frozen=True)
class Case:
    """A method on a tiny model."""

    method: str
    model: str

    def build(self, **options: Any) -> Method:
        """Adapt a fresh copy of the model."""
        return self.wrap(tiny_model(self.model), **options)

    def wrap(self, model: nn.Module, **options: Any) -> Method:
        """Adapt the given model."""
        kind = get_method(self.method)
        asked = {"guard", "regularizer", "auxiliary"} & set(options)
        artifact = tiny_artifact(self.model) if kind.needs or asked else None
        named = {} if artifact is not None else MODEL_OPTIONS.get(self.model, {})
        if named and artifact is None:
            named = {**named, "logits_at": 1}
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
        if self.is_dense and not is_dense(kind):
            return False
        return not kind.check(tiny_model(self.model), kind.config_class())

    @property
    def is_dense(self) -> bool:
        """Whether the model predicts every pixel."""
        return self.model in DENSE_MODELS


@functools.cache
def tiny_artifact(model: str, depth: int = 0) -> Artifact:
    """Prepare a tiny model once, with all parts that it can have."""
    net = tiny_model(model)
    options = PrototypeOptions(depth=depth, width=8, hidden=8, epochs=1)
    if model in DENSE_MODELS:
        return prepare(
            net,
            tiny_masks(4),
            parts=["penalty", "prototypes", "features"],
            penalty=PenaltyOptions(n_samples=16),
            prototypes=options if depth == 0 else dataclasses.replace(options, views="test"),
        )
    named = MODEL_OPTIONS.get(model, {})
    n_features = find_anatomy(net, tiny_batches(1)[0][0], **named).n_features
    return prepare(
        net,
        tiny_batches(4),
        parts=[part for part in PARTS if part != "fisher" or norm_parameters(net)],
        penalty=PenaltyOptions(n_samples=16),
        prototypes=options,
        contrast_head=build_contrastive_head(n_features, 8, 4),
        **named,
    )
