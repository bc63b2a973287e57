"""Joint training with the contrastive task of SimCLR, which TTT++ goes on with at test time.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020,
https://arxiv.org/abs/2002.05709. The authors of TTT++ publish a jointly trained model, but not its
training: weight and augmentation of the main loss are choices made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.errors import InvalidConfig, UnsuitableModel
from acclimate.forward import run
from acclimate.functional.contrast import contrastive_loss
from acclimate.functional.views import get_views
from acclimate.introspect import get_head, inspect_model
from acclimate.parts.contrastive_head import build_contrastive_head, write_head
from acclimate.training.objectives import Objective


def head_path(out: Path) -> Path:
    """Return where the projection head lies of a model in this file."""
    return out.with_name(f"{out.stem}.head.safetensors")


class SimclrJoint(Objective):
    """A main loss, and the contrastive loss of two views of each image through a head of its own.

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
                raise InvalidConfig(
                    "out_of_range",
                    f"Expected the {name} of the contrastive loss to be greater than 0, found "
                    f"{value}.",
                    option=name,
                    found=value,
                )
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
        """Return the main loss plus the weighted contrastive one."""
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
