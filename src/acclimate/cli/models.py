"""Models as they are named on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn


def load_model(
    spec: str, weights: Path | None, device: str = "auto", n_classes: int | None = None
) -> nn.Module:
    """Return the model a command line names, with its weights, on the device.

    Args:
        spec: As for `acclimate.zoo.named.load_named`, and so are `weights` and `n_classes`.
        weights: A file; None keeps those of the model.
        device: `auto`, `cpu`, `cuda` or `mps`.
        n_classes: Of the data, if known.
    """
    from acclimate.zoo.named import load_named

    place = get_device(device)
    return load_named(spec, weights, n_classes).to(place)


def get_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is the fastest one there is."""
    from acclimate.zoo import named

    return named.get_device(name)
