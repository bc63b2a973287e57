"""Training of source models, on one device or several; interrupted runs resume exactly.

settings = TrainSettings(model="resnet20-cifar10", data="cifar10", epochs=100)
train(settings, "resnet20.safetensors").error                     # on the test split, in percent
zoo.load("resnet20-cifar10", "resnet20.safetensors")

The settings determine the task: `TrainSettings` classification, `DomainSettings` several domains
with one held out, `SegmentationSettings` a class for every pixel. They need no torch; `train` and
the objectives are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from acclimate.training.settings import (
    DomainResult,
    DomainSettings,
    SegmentationResult,
    SegmentationSettings,
    Settings,
    TrainResult,
    TrainSettings,
)

if TYPE_CHECKING:
    from acclimate.training.objectives import AugMixJsd, CrossEntropy, Objective, SimclrJoint
    from acclimate.training.trainer import train

__all__ = [
    "AugMixJsd",
    "CrossEntropy",
    "DomainResult",
    "DomainSettings",
    "Objective",
    "SegmentationResult",
    "SegmentationSettings",
    "Settings",
    "SimclrJoint",
    "TrainResult",
    "TrainSettings",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "trainer" if name == "train" else "objectives"
    return getattr(importlib.import_module(f"acclimate.training.{home}"), name)
