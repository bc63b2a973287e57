"""Marginal entropy minimisation with one test point (MEMO)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from acclimate.functional.augmentations import augment, copy_generator
from acclimate.functional.augmix import AugMix
from acclimate.functional.entropy import entropy_of_mean
from acclimate.functional.norm import STATISTICS, Statistics
from acclimate.methods.base import Method, Problem
from acclimate.methods.config import Config, GradientConfig, hp, log_uniform
from acclimate.methods.gradient import GradientMethod
from acclimate.methods.optimizer import all_finite, build_optimizer
from acclimate.snapshot import copy_tree, load_tensors, model_tensors

_MOST_VALUES = 2**21  # in copies that are made at once, of as many images as that allows


@dataclass(frozen=True, kw_only=True)
class MemoConfig(GradientConfig):
    """Options of `memo`; the defaults are published for CIFAR-10 and a ResNet-26 with GroupNorm."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": {"lr": 2.5e-4, "n_copies": 64, "place": "crop"}
    }

    statistics: str = hp(
        "mixed",
        choices=STATISTICS,
        help="of BatchNorm; mixed: the source's and some of the image's",
    )
    statistics_momentum: float = hp(
        1 / 17, low=0.0, high=1.0, help="share of the image; 1 / (N + 1) with a prior of N = 16"
    )
    optimizer: str = hp("sgd", choices=("adam", "adamw", "sgd"), help="the optimiser")
    lr: float = hp(0.005, low=0.0, search=log_uniform(1e-5, 1e-2), help="learning rate")
    n_copies: int = hp(32, low=1, help="augmented copies of an image (B)")
    severity: float = hp(1.0, low=0.1, high=10.0, help="highest level of AugMix's operations")
    place: str = hp(
        "shift", choices=("shift", "crop"), help="of copies: shifted (CIFAR) or cropped (ImageNet)"
    )


class Memo(Method):
    """Makes the mean prediction over augmented copies of one image sure, and forgets it after.

    Paper: Zhang et al. 2022, https://arxiv.org/abs/2110.09506.
    Official code: https://github.com/zhangmarvin/memo.
    A batch is taken image by image, each from the source weights and with a fresh optimiser; the
    authors' code keeps the state of AdamW from one image to the next. Gradients flow through the
    image's share of the BatchNorm statistics, which in the authors' code they do not. What an
    operation leaves empty is grey; there it is dark red, which is how Pillow reads the 128 given.
    Moves all parameters, for one image at a time, so that SWR and NSP have nothing to hold on to.
    Returns the logits after the update; whatever else the model returns is the source model's.
    Cost of a batch: for each image, 2 forwards (one of all its copies) and 1 backward.
    """

    name: ClassVar[str] = "memo"
    config_class: ClassVar[type[Config]] = MemoConfig
    config: MemoConfig
    paper: ClassVar[str] = "https://arxiv.org/abs/2110.09506"
    code: ClassVar[str] = "https://github.com/zhangmarvin/memo"
    year: ClassVar[int] = 2022
    moves: ClassVar[str] = "all parameters, for one image at a time"
    predicts: ClassVar[str] = "after"
    forwards: ClassVar[int] = 2
    backwards: ClassVar[int] = 1
    counts_by_image: ClassVar[bool] = True

    @classmethod
    def check(cls, model: nn.Module, config: Config) -> list[Problem]:
        """Report a model in which nothing would move."""
        return GradientMethod.check(model, config)

    def setup(self) -> None:
        """Choose the augmentation."""
        self._augmentation = AugMix(self.config.severity, self.config.place)

    def needs_several_samples(self) -> bool:
        """Single images are what it is for."""
        return False

    def step(self, x: Tensor) -> Tensor:
        """Adapt to each image by itself, predict it, and go back to the source."""
        return self._predict_each(x, self.generator)

    def predict(self, x: Tensor) -> Tensor:
        """Predict one batch as it would be next; nothing is left of it in either case."""
        return self._predict_each(x, copy_generator(self.generator))

    def _predict_each(self, x: Tensor, generator: torch.Generator) -> Tensor:
        source = copy_tree(model_tensors(self.model))
        # One image has no batch statistics; those of the source are what is left.
        alone: Statistics | None = "source" if self._statistics == "batch" else None
        logits, n_updates, n_copies = [], 0, self.config.n_copies
        n_together = max(1, _MOST_VALUES // (n_copies * x[0].numel()))
        for start in range(0, len(x), n_together):
            images = x[start : start + n_together]
            copies = images.repeat_interleave(n_copies, dim=0)
            copies = augment(self._augmentation, copies, self.normalization, generator)
            for index in range(len(images)):
                own = copies[index * n_copies : (index + 1) * n_copies]
                try:
                    n_updates += self._adapt_to(own, source)
                    torch.clear_autocast_cache()  # which holds the weights of before
                    logits.append(self.run(images[index : index + 1], statistics=alone).logits)
                finally:
                    load_tensors(self.model, source)
                    torch.clear_autocast_cache()
        if not self._paused:
            self.counts.updates += n_updates
            if n_updates < len(x):
                self.counts.skip("non_finite")
        if not isinstance(self._output, Tensor):
            # What comes beside the logits must be of the whole batch, not of the first copies.
            self._output = None
            self.run(x, moves=False, statistics="source")
        return torch.cat(logits)

    def _adapt_to(self, copies: Tensor, source: dict[str, Tensor]) -> bool:
        """Take one step on the copies of an image; say whether it was applied."""
        moved = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        with torch.enable_grad():
            loss = entropy_of_mean(self.run(copies).logits)
            gradients = torch.autograd.grad(loss, moved, allow_unused=True)
        self.counts.backwards += not self._paused
        # The image itself is met with the source's statistics, not with those of its copies.
        load_tensors(self.model, {name: source[name] for name, _ in self.model.named_buffers()})
        if not all_finite([loss, *(g for g in gradients if g is not None)]):
            return False
        own = [parameter.grad for parameter in moved]  # a caller's, left as they are
        try:
            _set_gradients(moved, gradients)
            build_optimizer(moved, self.config).step()
        finally:
            _set_gradients(moved, own)
        applied = all_finite(moved)
        if not applied:
            load_tensors(self.model, source)
        return applied


def _set_gradients(moved: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    for parameter, gradient in zip(moved, gradients, strict=True):
        parameter.grad = gradient
