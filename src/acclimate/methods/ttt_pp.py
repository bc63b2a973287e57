from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from acclimate.errors import ArtifactMissing
from acclimate.functional.contrast import contrastive_loss
from acclimate.functional.views import VIEW_SETS, apply_views, get_views
from acclimate.methods.config import hp, log_uniform, options, uniform
from acclimate.methods.tfa import Tfa, TfaConfig
from acclimate.parts.contrastive_head import HOW_TO_TRAIN


@options
class TttPpConfig(TfaConfig):
    """Options of `ttt_pp`; the defaults are the authors' for CIFAR-10."""

    temperature: float = hp(
        0.5, low=1e-4, search=uniform(0.05, 1.0), help="of the contrastive loss (T)"
    )
    contrast_weight: float = hp(
        0.5 / 0.07,
        low=0.0,
        search=log_uniform(0.1, 10),
        help="of the contrastive loss; the authors' is the temperature divided by 0.07",
    )
    views: str = hp(
        "simclr", choices=tuple(VIEW_SETS), help="transforms that make the two contrasted views"
    )


class TttPp(Tfa):
    """Aligns features with the source, and goes on with the contrastive task of training.

    The method `both` of the authors' code for CIFAR. Needs a model that was trained jointly with a
    projection head on a contrastive loss (`acclimate train --objective simclr`), and the head in
    the artifact. The two views of the batch pass the model together, as in training by the authors;
    the alignment sees the batch as it is. The authors' script is offline and takes the two losses
    from different batches; here each batch is seen once, by both, and no test label is used. See
    `tfa` for the rest. The second forward is on twice as many images, the backward is through both.
    """

    name = "ttt_pp"
    config_class = TttPpConfig
    config: TttPpConfig
    card = replace(Tfa.card, forwards=2)
    #: Whether an artifact without a projection head is of no use, and need not be made.
    needs_contrast_head: ClassVar[bool] = True

    def setup(self) -> None:
        if self.artifact is not None and self.artifact.parts["contrast"]["head"] is None:
            raise ArtifactMissing(
                "projection_head_needed",
                "ttt_pp goes on with the contrastive task that a model was trained with, and this "
                f"artifact has no projection head. {HOW_TO_TRAIN} Without one, tfa works.",
            )
        super().setup()

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits, aligned = super().loss(x)
        views = get_views(self.config.views)
        both = [apply_views(views, x, self.normalization, self.generator) for _ in range(2)]
        features = self.run(torch.cat(both), moves=False).known_features
        head = self.alignment.get_submodule("head")
        first, second = head(features).chunk(2)
        contrast = contrastive_loss(first, second, self.config.temperature)
        return logits, aligned + self.config.contrast_weight * contrast
