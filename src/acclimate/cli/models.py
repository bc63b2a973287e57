"""Models as they are named on the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from acclimate.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import nn

_DEVICES = ("auto", "cpu", "cuda", "mps")


def load_model(
    spec: str, weights: Path | None, device: str = "auto", n_classes: int | None = None
) -> nn.Module:
    """Return the model a command line names, with its weights, on the device.

    Args:
        spec: `package.module:function`, a name of the zoo, `timm:NAME`, `torchvision:NAME`, or
            `builtin`.
        weights: A safetensors file or a PyTorch state dict; None keeps those of the function.
        device: `auto`, `cpu`, `cuda` or `mps`.
        n_classes: Of the data, if known: chooses the entry of the zoo that an architecture alone,
            such as `resnet20`, stands for.
    """
    place = get_device(device)
    return _build(spec, weights, n_classes).to(place)


def get_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is the fastest one there is."""
    import torch

    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(device for device, is_there in there.items() if is_there))
    if name not in there:
        raise BadInput(f'there is no device "{name}". {did_you_mean(name, _DEVICES)}')
    if not there[name]:
        raise BadInput(f'this machine has no device "{name}". Use --device auto or cpu.')
    return torch.device(name)


def _build(spec: str, weights: Path | None, n_classes: int | None) -> nn.Module:
    from acclimate import zoo

    if spec == "builtin":
        from acclimate.builtin import load_model as load_builtin

        model = load_builtin()
        if weights is not None:
            zoo.fit(model, zoo.read_tensors(weights), None, weights)
        return model
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if ":" not in spec and spec not in zoo.list_models():
        known = zoo.get_spec(spec, n_classes).n_classes
        n_classes = known if known == n_classes else None
        return zoo.load(spec, weights, n_classes)
    return zoo.load(spec, weights)
