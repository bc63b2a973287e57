"""The projection head of contrastive learning: build it, read it and write it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.errors import ArtifactMismatch, UnsuitableModel
from acclimate.snapshot import fingerprint
from acclimate.storage import read_file, write_file

#: Output width of the head in SimCLR and TTT++.
WIDTH = 128

#: The remedy if there is no head.
HOW_TO_TRAIN = (
    "Train the model together with a head: acclimate train --objective simclr --model NAME --data "
    "SET --out FILE.safetensors, which writes the head to FILE.head.safetensors. Then prepare: "
    'acclimate.prepare(model, source, method="ttt_pp", '
    'parts=[Contrast(head="FILE.head.safetensors")]).'
)

_KIND = "contrast_head"
_NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


def build_contrastive_head(
    n_features: int, hidden: int | None = None, width: int = WIDTH, seed: int = 0
) -> nn.Sequential:
    """Build a projection head with fresh weights: Linear – ReLU – Linear.

    The hidden width is that of the features by default. The global random state is unchanged.

    >>> [type(layer).__name__ for layer in build_contrastive_head(8)]
    ['Linear', 'ReLU', 'Linear']
    """
    hidden = n_features if hidden is None else hidden
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(n_features, hidden), nn.ReLU(), nn.Linear(hidden, width))


def head_from_weights(weights: Mapping[str, Tensor]) -> nn.Sequential:
    """Build a frozen projection head from weights, which are copied."""
    if set(weights) != set(_NAMES):
        raise UnsuitableModel(
            "wrong_projection_head",
            f"Expected a projection head with the tensors {', '.join(_NAMES)} (Linear, ReLU, "
            f"Linear), found {', '.join(sorted(weights)) or 'none'}. Pass such a head.",
        )
    hidden, n_features = weights["0.weight"].shape
    head = build_contrastive_head(n_features, hidden, len(weights["2.weight"]))
    # Assigned, not copied: a new single-precision layer would round double-precision weights.
    head.load_state_dict({name: value.clone() for name, value in weights.items()}, assign=True)
    return head.requires_grad_(False)


def write_head(
    path: str | Path, head: nn.Module, model: nn.Module, card: Mapping[str, Any]
) -> None:
    """Write a projection head as one file that identifies the model it was trained with."""
    trained_with = fingerprint(model)["weights_sha256"]
    write_file(path, _KIND, head.state_dict(), {**card, "model_sha256": trained_with})


def read_head(head: nn.Module | str | Path, model: nn.Module, n_features: int) -> nn.Sequential:
    """Return a frozen copy of a projection head with the device and precision of the model.

    Args:
        head: A module of the layers Linear, ReLU, Linear; or a file that `write_head` wrote.
        model: The model that it was trained with. A file is verified to belong to it.
        n_features: Width of the model's features.

    Raises:
        ArtifactMismatch: The file belongs to another model, or the width differs.
        UnsuitableModel: The module has other layers.
    """
    if isinstance(head, nn.Module):
        layers = [type(layer) for layer in head.children()]
        if not isinstance(head, nn.Sequential) or layers != [nn.Linear, nn.ReLU, nn.Linear]:
            names = ", ".join(kind.__name__ for kind in layers) or "no layers"
            raise UnsuitableModel(
                "wrong_projection_head",
                "Expected the projection head to be an nn.Sequential of Linear, ReLU, Linear, "
                f"found {type(head).__name__} of {names}. Artifacts cannot store other heads.",
            )
        weights: Mapping[str, Tensor] = head.state_dict()
    else:
        weights, card = read_file(head, _KIND)
        trained_with, found = card.get("model_sha256"), fingerprint(model)["weights_sha256"]
        if trained_with != found:
            raise ArtifactMismatch(
                "other_model",
                f"Expected a projection head that was trained with this model, but {head} belongs "
                "to a model with other weights or tensor names. Load the weights that were written "
                "beside it, or pass the head of this model.",
                differences={"weights_sha256": (trained_with, found)},
            )
    built = head_from_weights(weights)
    width = weights["0.weight"].shape[1]
    if width != n_features:
        raise ArtifactMismatch(
            "other_model",
            f"Expected a projection head for the {n_features} features of this model, found one "
            f"for {width}. Pass the head that was trained together with this model.",
            differences={"n_features": (width, n_features)},
        )
    return built.to(next(iter(model.parameters())))
