"""TTT++: feature alignment and contrastive learning on the test images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from acclimate.errors import ArtifactMissing
from acclimate.functional.contrast import contrastive_loss
from acclimate.functional.views import VIEW_SETS, apply_views, get_views
from acclimate.methods.config import Config, Presets, hp, log_uniform, uniform
from acclimate.methods.method import MethodCard
from acclimate.methods.tfa import Tfa, TfaConfig
from acclimate.parts.contrastive_head import HOW_TO_TRAIN


@dataclass(frozen=True, kw_only=True)
class TttPpConfig(TfaConfig):
    """Options of `ttt_pp`; the defaults are the authors' for CIFAR-10."""

    presets: ClassVar[Presets] = TfaConfig.presets

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

    Paper: Liu et al. 2021,
    https://papers.nips.cc/paper/2021/hash/b618c3210e934362ac261db280128c22-Abstract.html.
    Official code: https://github.com/vita-epfl/ttt-plus-plus (cifar, method `both`).
    Needs a model that was trained jointly with a projection head on a contrastive loss
    (`acclimate train --joint simclr`), and the head in the artifact. The two views of the batch
    pass the model together, as in training by the authors; the alignment sees the batch as it is.
    The authors' script is offline and takes the two losses from different batches; here each batch
    is seen once, by both, and no test label is used. See `tfa` for the rest.
    Moves all parameters of the encoder; classifier and projection head are fixed. Returns the
    logits before the update. Cost of a batch: 2 forwards (the second on twice as many images, two
    views of each), 1 backward through both.
    """

    name: ClassVar[str] = "ttt_pp"
    config_class: ClassVar[type[Config]] = TttPpConfig
    config: TttPpConfig
    card: ClassVar[MethodCard] = MethodCard(
        paper="https://papers.nips.cc/paper/2021/hash/b618c3210e934362ac261db280128c22-Abstract.html",
        code="https://github.com/vita-epfl/ttt-plus-plus",
        year=2021,
        moves="all parameters of the encoder",
        forwards=2,
        backwards=1,
    )
    #: Whether an artifact without a projection head is of no use, and need not be made.
    needs_contrast_head: ClassVar[bool] = True

    def setup(self) -> None:
        """Refuse an artifact without a projection head."""
        if self.artifact is not None and self.artifact.parts["contrast"]["head"] is None:
            raise ArtifactMissing(
                "projection_head_needed",
                "ttt_pp goes on with the contrastive task that a model was trained with, and this "
                f"artifact has no projection head. {HOW_TO_TRAIN} Without one, tfa works.",
            )
        super().setup()

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the alignment's loss and the contrastive one."""
        logits, aligned = super().loss(x)
        views = get_views(self.config.views)
        both = [apply_views(views, x, self.normalization, self.generator) for _ in range(2)]
        features = self.run(torch.cat(both), moves=False).known_features
        head = self.alignment.get_submodule("head")
        first, second = head(features).chunk(2)
        contrast = contrastive_loss(first, second, self.config.temperature)
        return logits, aligned + self.config.contrast_weight * contrast
