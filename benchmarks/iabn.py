"""The built-in model with instance-aware BatchNorm, on which `note` is measured."""

from __future__ import annotations

from torch import nn

from acclimate.builtin import load_model


def load() -> nn.Module:
    """Return the model."""
    return load_model("iabn")
