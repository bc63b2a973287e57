"""What training minimises: from a batch of raw images to one number."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.errors import InvalidConfig, UnsuitableModel, refuse_value
from acclimate.forward import run
from acclimate.functional.augmix import AugMixOptions, draw, mix, shift_and_flip
from acclimate.functional.contrast import contrastive_loss
from acclimate.functional.views import Augmentation, get_views
from acclimate.introspect import get_head, inspect_model
from acclimate.parts.contrastive_head import build_contrastive_head, write_head
from acclimate.training.settings import TrainSettings


class Objective(nn.Module, ABC):
    """A loss with the augmentation that belongs to it.

    Parameters it has, such as those of a second head, are trained with the model and kept in
    checkpoints, but not in the file that is written at the end; `write` may write another.
    """

    def attach(self, model: nn.Module, x: Tensor) -> None:
        """Make what depends on the model, such as a second head; called before training.

        The model has its first weights; `x` are a few images as stored.
        """

    def write(self, out: Path, model: nn.Module, card: Mapping[str, Any]) -> None:
        """Write what is to be kept besides the model, which is written to `out`.

        The card describes the run as JSON types.
        """

    @abstractmethod
    def forward(self, model: nn.Module, x: Any, y: Any, generator: torch.Generator) -> Any:
        """Return the mean loss of a batch, or this and a penalty in it before it is weighted.

        Args:
            model: Takes images in [0, 1] and returns logits.
            x: Images as stored, uint8, (batch, channels, height, width); of several domains a list.
            y: Class numbers, (batch,), or masks; of several domains a list.
            generator: On the CPU; the only source of random draws besides those of layers.
        """


class CrossEntropy(Objective):
    """Cross entropy on images that are augmented or not."""

    def __init__(
        self, augmentation: Augmentation | None = shift_and_flip, label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.augmentation = augmentation
        self.label_smoothing = label_smoothing

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        if self.augmentation is not None:
            x = self.augmentation(x, generator)
        return F.cross_entropy(model(x.float() / 255), y, label_smoothing=self.label_smoothing)


def jensen_shannon(logits: Tensor) -> Tensor:
    """Return the mean Jensen-Shannon divergence of logits (predictions, batch, classes)."""
    log_probs = F.log_softmax(logits, dim=2)
    log_mean = torch.logsumexp(log_probs, dim=0) - math.log(len(logits))
    divergences = (log_probs.exp() * (log_probs - log_mean)).sum(dim=2)
    return divergences.mean()


class AugMixJsd(Objective):
    """Cross entropy on the shifted and flipped images, and agreement with two mixed forms of each.

    Hendrycks et al., "AugMix", ICLR 2020, https://arxiv.org/abs/1912.02781. The weight is that of
    the Jensen-Shannon divergence, λ in the paper.
    """

    def __init__(
        self,
        options: AugMixOptions | None = None,
        weight: float = 12.0,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.options = AugMixOptions() if options is None else options
        self.weight = weight
        self.label_smoothing = label_smoothing

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        x = shift_and_flip(x, generator)
        twice = torch.cat([x, x])
        mixed = mix(twice, draw(len(twice), self.options, generator))
        # One pass for all three, so that they are normalised by the same batch statistics.
        logits = model(torch.cat([x.float() / 255, mixed])).float().view(3, len(x), -1)
        loss = F.cross_entropy(logits[0], y, label_smoothing=self.label_smoothing)
        return loss + self.weight * jensen_shannon(logits)


def head_path(out: Path) -> Path:
    """Return where the projection head lies of a model in this file."""
    return out.with_name(f"{out.stem}.head.safetensors")


class SimclrJoint(Objective):
    """A main loss, and the contrastive loss of two views of each image through a head of its own.

    Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020,
    https://arxiv.org/abs/2002.05709. TTT++ continues this task at test time. Its authors publish a
    jointly trained model, but not its training: weight and augmentation of the main loss are
    choices made here.

    The views pass the model together and before the images of the main loss, so that running
    statistics end nearest to those of plain images.

    Args:
        main: The main loss, with the augmentation that belongs to it.
        weight: Of the contrastive loss.
        temperature: Of the contrastive loss; that of TTT++ by default.
        views: Transforms that make the two views: a name or a list.
        seed: Of the head's first weights.
    """

    head: nn.Sequential | None

    def __init__(
        self,
        main: Objective,
        weight: float = 1.0,
        temperature: float = 0.5,
        views: Any = "simclr",
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("weight", weight), ("temperature", temperature)):
            if not value > 0:
                refuse_value(name, value, "greater than 0", InvalidConfig)
        self.main, self.weight, self.temperature = main, weight, temperature
        self.views, self.seed = get_views(views), seed
        self.head = None
        self._head_name = ""

    def attach(self, model: nn.Module, x: Tensor) -> None:
        """Build the head for the features of this model; needed once, before training."""
        self.main.attach(model, x)
        info = inspect_model(model, x.float() / 255)
        self._head_name = info.known_head
        self.head = build_contrastive_head(info.known_width, seed=self.seed)

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        head = self._built_head()
        image = x.float() / 255
        both = torch.cat([self.views(image, generator) for _ in range(2)])
        features = run(model, both, get_head(model, self._head_name)).known_features
        first, second = head(features).chunk(2)
        contrast = contrastive_loss(first, second, self.temperature)
        main: Tensor = self.main(model, x, y, generator)
        return main + self.weight * contrast

    def write(self, out: Path, model: nn.Module, card: Mapping[str, Any]) -> None:
        """Write the head beside the model: `<name>.head.safetensors`."""
        self.main.write(out, model, card)
        write_head(head_path(out), self._built_head(), model, {"training": dict(card)})

    def _built_head(self) -> nn.Sequential:
        if self.head is None:
            raise UnsuitableModel(
                "not_attached",
                "The contrastive head is not attached to a model. Call attach(model, x) first.",
            )
        return self.head


def make_objective(settings: TrainSettings) -> Objective:
    """Return what a run minimises."""
    main: Objective
    if "augmix" in settings.objective:
        main = AugMixJsd(label_smoothing=settings.label_smoothing)
    else:
        augmentation = shift_and_flip if settings.augmentation == "standard" else None
        main = CrossEntropy(augmentation, settings.label_smoothing)
    if "simclr" not in settings.objective:
        return main
    return SimclrJoint(main, settings.contrast_weight, seed=settings.seed)
