"""What the tests of integrations share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import acclimate
from acclimate import Artifact, Penalty
from acclimate.testing.models import tiny_batches, tiny_model
from tests.guarding import script_gain


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def is_as_before(model: nn.Module, before: dict[str, Tensor]) -> bool:
    now = model.state_dict()
    return list(now) == list(before) and all(torch.equal(now[k], v) for k, v in before.items())


def images(n: int = 3, batch_size: int = 16) -> list[Tensor]:
    return [x for x, _ in tiny_batches(n, batch_size, seed=3)]


def prepare_tiny(model: nn.Module, **options: object) -> Artifact:
    parts = [Penalty(n_samples=8), "prototypes", "features", "mirror", "confidence"]
    return acclimate.prepare(model, tiny_batches(4), **{"parts": parts, **options})  # type: ignore[arg-type]


def guarded() -> tuple[nn.Module, Artifact]:
    """A model, and an artifact whose guard never restores anything."""
    model = tiny_model("batch_norm")
    return model, script_gain(prepare_tiny(model), 0.2)
