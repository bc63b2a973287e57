"""A small task that needs no download: images made by code and source models trained on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from acclimate.artifact import Artifact
from acclimate.builtin.model import WideResNet, open_weights
from acclimate.builtin.render import CLASSES, SIZE, render
from acclimate.errors import check_name
from acclimate.functional.iabn import convert
from acclimate.parts.contrastive_head import read_head

__all__ = [
    "CLASSES",
    "KINDS",
    "SIZE",
    "SPLITS",
    "WideResNet",
    "load_artifact",
    "load_head",
    "load_model",
    "load_split",
    "model_card",
    "render",
    "untrained_model",
]

# Each split is an endless sequence of its own.
SPLITS: dict[str, int] = {"train": 1, "test": 2, "validation": 3}

#: Source models by what is special about them: nothing; instance-aware BatchNorm, as NOTE needs;
#: joint training with a projection head on a contrastive loss, as TTT++ needs.
KINDS = ("plain", "iabn", "joint")

_FOLDER = files("acclimate.builtin")


def load_split(split: str, n: int, start: int = 0) -> tuple[Tensor, Tensor]:
    """Return `n` images in [0, 1] of shape (n, 3, 32, 32) and their labels.

    The split is a key of `SPLITS`, `start` the place in it of the first image.
    """
    check_name(split, SPLITS, "split")
    images, labels = render(n, SPLITS[split], start)
    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    return x.float() / 255, torch.from_numpy(labels)


def untrained_model() -> WideResNet:
    """Return the architecture of the source model, with the weights PyTorch gives it."""
    return WideResNet(depth=10, width=2, n_classes=len(CLASSES))


def load_model(kind: str = "plain") -> WideResNet:
    """Return a source model, one of `KINDS`, with its weights, in evaluation mode.

    Raises:
        CorruptFile: when the weights are missing, damaged, or of another architecture.
    """
    model = untrained_model()
    if kind == "iabn":
        convert(model)
    with _open(kind) as path:
        model.load_state_dict(load_file(path), strict=True)
    return model.eval()


def load_head() -> nn.Sequential:
    """Return the projection head that the source model "joint" was trained with."""
    model = load_model("joint")
    with _open("joint", ".head") as path:
        return read_head(path, model, model.head.in_features)


def model_card(kind: str = "plain") -> dict[str, str]:
    """Return what the file of a source model says of its training and its clean error."""
    with _open(kind) as path, safetensors.safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


@contextmanager
def _open(kind: str, suffix: str = "") -> Iterator[Path]:
    """Give the file of a source model; say so if it cannot be used."""
    check_name(kind, KINDS, "source model")
    name = "source" if kind == "plain" else f"source_{kind}"
    with open_weights(_FOLDER / f"{name}{suffix}.safetensors") as path:
        yield path


def load_artifact() -> Artifact:
    """Return the artifact of the plain source model, with all that `steady` and a guard need.

    It was made by `benchmarks/prepare_builtin.py`.
    """
    with open_weights(_FOLDER / "source.acclimate") as path:
        return Artifact.load(path)
