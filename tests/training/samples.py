"""A tiny folder of images to train on, and settings for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
