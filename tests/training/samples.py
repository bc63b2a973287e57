"""A tiny folder of images to train on, and settings for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from acclimate.training import TrainSettings
from tests.cli_models import CLASSES


def make_photos(root: Path, n_train: int = 40, n_test: int = 12) -> Path:
    """Write noise images of 8×8 pixels in which the class is a brightness; return the folder."""
    draws = np.random.default_rng(7)
    for split, n in (("train", n_train), ("test", n_test)):
        for index in range(n):
            label = index % len(CLASSES)
            folder = root / split / CLASSES[label]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = draws.integers(50 * label, 50 * label + 90, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{index:03}.png")
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
