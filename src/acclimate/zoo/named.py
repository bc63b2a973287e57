"""Models and devices by the names that commands and suites give them."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

from acclimate import builtin, zoo
from acclimate.builtin.scene_model import load_scene_model
from acclimate.errors import BadInput, did_you_mean
from acclimate.zoo.segmentation import WHITENED, is_dense_name, load_dense

DEVICES = ("auto", "cpu", "cuda", "mps")


def load_named(
    spec: str, weights: str | Path | None = None, n_classes: int | None = None
) -> nn.Module:
    """Return the model of a name, with its weights, on the processor.

    Args:
        spec: `package.module:function`, a name of the zoo, `timm:NAME`, `torchvision:NAME`,
            `builtin`, or a dense model, with `+isw` at the end if it whitens instances. Modules are
            also looked for in the current folder.
        weights: A safetensors file or a PyTorch state dict; None keeps those of the function.
        n_classes: Of the data, if known: chooses the entry of the zoo that an architecture alone,
            such as `resnet20`, stands for.
    """
    file = None if weights is None else Path(weights)
    if spec == "builtin":
        model: nn.Module = builtin.load_model()
        if file is not None:
            zoo.fit(model, zoo.read_tensors(file), None, file)
        return model
    if is_dense_name(spec):
        return _load_dense(spec, file)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if ":" not in spec and spec not in zoo.list_models():
        known = zoo.get_spec(spec, n_classes).n_classes
        n_classes = known if known == n_classes else None
        return zoo.load(spec, file, n_classes)
    return zoo.load(spec, file)


def _load_dense(name: str, file: Path | None) -> nn.Module:
    if file is not None:
        return load_dense(file, name)
    if name == "builtin-scenes":
        return load_scene_model()
    raise BadInput(
        f"no weights of {name} are published. Give a file of your own, or train it: "
        f"{how_to_train(name)}."
    )


def how_to_train(name: str) -> str:
    """Return the command that trains a dense model of that name."""
    whitened = " --isw" if name.endswith(WHITENED) else ""
    return (
        f"acclimate train --task segmentation --model {name.removesuffix(WHITENED)}{whitened} "
        "--data camvid --out FILE"
    )


def get_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is the fastest one there is."""
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(device for device, is_there in there.items() if is_there))
    if name not in there:
        raise BadInput(f'there is no device "{name}". {did_you_mean(name, DEVICES)}')
    if not there[name]:
        raise BadInput(f'this machine has no device "{name}". Use --device auto or cpu.')
    return torch.device(name)
