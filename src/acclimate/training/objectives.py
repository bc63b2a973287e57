"""What training minimises: from a batch of raw images to one number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.functional.augmix import shift_and_flip
from acclimate.training.settings import TrainSettings

#: Takes images and a generator on the CPU, and returns other images.
Augmentation = Callable[[Tensor, torch.Generator], Tensor]


class Objective(nn.Module, ABC):
    """A loss with the augmentation that belongs to it.

    Parameters it has, such as those of a second head, are trained with the model and kept in
    checkpoints, but not in the file that is written at the end; `write` may write another.
    """

    def attach(self, model: nn.Module, x: Tensor) -> None:
        """Make what depends on the model, such as a second head; called before training.

        Args:
            model: With its first weights.
            x: A few images as stored.
        """

    def write(self, out: Path, model: nn.Module, card: Mapping[str, Any]) -> None:
        """Write what is to be kept besides the model; called after training.

        Args:
            out: Where the model is written.
            model: Trained.
            card: What run it was; can be written as JSON.
        """

    @abstractmethod
    def forward(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean loss of a batch.

        Args:
            model: Takes images in [0, 1] and returns logits.
            x: Images as stored, uint8, (batch, channels, height, width).
            y: Class numbers, (batch,).
            generator: On the CPU; the only source of random draws.
        """


class CrossEntropy(Objective):
    """Cross entropy on images that are augmented or not.

    Args:
        augmentation: Of uint8 images; None for none.
        label_smoothing: Part of the target that is spread over all classes.
    """

    def __init__(
        self, augmentation: Augmentation | None = shift_and_flip, label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.augmentation = augmentation
        self.label_smoothing = label_smoothing

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean cross entropy."""
        if self.augmentation is not None:
            x = self.augmentation(x, generator)
        return F.cross_entropy(model(x.float() / 255), y, label_smoothing=self.label_smoothing)


def make_objective(settings: TrainSettings) -> Objective:
    """Return what a run minimises."""
    if settings.joint == "simclr":
        from acclimate.training.simclr import SimclrJoint

        return SimclrJoint(_main_objective(settings), settings.joint_weight, seed=settings.seed)
    return _main_objective(settings)


def _main_objective(settings: TrainSettings) -> Objective:
    if settings.augmentation == "augmix":
        from acclimate.training.augmix import AugMixJsd

        return AugMixJsd(label_smoothing=settings.label_smoothing)
    augmentation = shift_and_flip if settings.augmentation == "standard" else None
    return CrossEntropy(augmentation, settings.label_smoothing)
