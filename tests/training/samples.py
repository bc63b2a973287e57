"""A tiny folder of images to train on, and settings for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acclimate.storage import read_file
from acclimate.training import TrainSettings
from tests.cli_models import CLASSES
from tests.images import write_images


def make_photos(root: Path, n_train: int = 40, n_test: int = 12) -> Path:
    """Write noise images of 8×8 pixels in which the class is a brightness; return the folder."""
    for seed, (split, n) in enumerate((("train", n_train), ("test", n_test))):
        write_images(root / split, dict.fromkeys(CLASSES, n // len(CLASSES)), seed=seed)
    return root


def make_settings(photos: Path, **changes: Any) -> TrainSettings:
    """Return settings of a run of 3 epochs with 5 steps each, of a model with dropout."""
    known: dict[str, Any] = {
        "model": "tests.cli_models:tiny_cnn",
        "data": str(photos),
        "epochs": 3,
        "batch_size": 8,
    }
    return TrainSettings(**{**known, **changes})


class Cut(Exception):
    """Ends a run as a crash would."""


def cut_after(n_steps: int) -> Any:
    """Return a callback that ends the run when that many steps are done."""

    def progress(stage: str, done: int, total: int | None) -> None:
        if stage == "train" and done == n_steps:
            raise Cut

    return progress


def weights(path: Path) -> dict[str, Tensor]:
    return read_file(path, "zoo")[0]


def assert_same(path: Path, other: Path) -> None:
    expected, found = weights(path), weights(other)
    assert expected.keys() == found.keys()
    different = [name for name in expected if not torch.equal(expected[name], found[name])]
    assert not different
