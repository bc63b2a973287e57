"""A small task that needs no download: images made by code and a source model trained on them."""

from __future__ import annotations

from importlib.resources import as_file, files

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor

from acclimate.builtin.model import WideResNet
from acclimate.builtin.render import CLASSES, SIZE, render
from acclimate.errors import BadInput, CorruptFile, did_you_mean

__all__ = [
    "CLASSES",
    "SIZE",
    "SPLITS",
    "WideResNet",
    "load_model",
    "load_split",
    "model_card",
    "render",
    "untrained_model",
]

# Each split is an endless sequence of its own.
SPLITS: dict[str, int] = {"train": 1, "test": 2, "validation": 3}

_WEIGHTS = files("acclimate.builtin") / "source.safetensors"


def load_split(split: str, n: int, start: int = 0) -> tuple[Tensor, Tensor]:
    """Return images in [0, 1] of shape (n, 3, 32, 32) and their labels.

    Args:
        split: a key of `SPLITS`.
        n: number of images.
        start: place in the split of the first image.

    Raises:
        BadInput: when there is no such split, or `n` or `start` is negative.
    """
    if split not in SPLITS:
        raise BadInput(f'no split "{split}". {did_you_mean(split, SPLITS)}')
    images, labels = render(n, SPLITS[split], start)
    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    return x.float() / 255, torch.from_numpy(labels)


def untrained_model() -> WideResNet:
    """Return the architecture of the source model, with the weights PyTorch gives it."""
    return WideResNet(depth=10, width=2, n_classes=len(CLASSES))


def load_model() -> WideResNet:
    """Return the source model with the weights that come with the package, in evaluation mode.

    Raises:
        CorruptFile: when the weights are missing, damaged, or of another architecture.
    """
    model = untrained_model()
    with as_file(_WEIGHTS) as path:
        try:
            model.load_state_dict(load_file(path), strict=True)
        except (safetensors.SafetensorError, RuntimeError, FileNotFoundError) as error:
            raise CorruptFile(
                f"the weights of the built-in model at {path} cannot be used: {error}. "
                "Install acclimate again."
            ) from error
    return model.eval()


def model_card() -> dict[str, str]:
    """Return what the file of the source model says of its training and its clean error."""
    with as_file(_WEIGHTS) as path, safetensors.safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})
