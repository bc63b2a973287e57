"""Training of source models, on one device or several; runs that are cut go on exactly.

settings = TrainSettings(model="resnet20-cifar10", data="cifar10", epochs=100)
train(settings, "resnet20.safetensors").error                     # on the test split, in percent
zoo.load("resnet20-cifar10", "resnet20.safetensors")
"""

from __future__ import annotations

from acclimate.functional.augmix import AugMixOptions
from acclimate.training.augmix import AugMixJsd
from acclimate.training.objectives import CrossEntropy, Objective
from acclimate.training.output import TrainResult
from acclimate.training.run import train
from acclimate.training.settings import TrainSettings
from acclimate.training.simclr import SimclrJoint

__all__ = [
    "AugMixJsd",
    "AugMixOptions",
    "CrossEntropy",
    "Objective",
    "SimclrJoint",
    "TrainResult",
    "TrainSettings",
    "train",
]
