from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from acclimate.export import ExportPlan
from acclimate.functional.augmentations import CottaAugmentation, augment
from acclimate.functional.entropy import cross_entropy_between, log_probs
from acclimate.functional.inputs import check_images
from acclimate.functional.pixels import Grid, to_maps, to_rows
from acclimate.functional.rng import copy_generator
from acclimate.functional.teacher import copy_frozen, follow, share_buffers
from acclimate.methods.config import GradientConfig, hp, options, published, uniform
from acclimate.methods.gradient import GradientMethod


@options
class CottaConfig(GradientConfig):
    """Options of `cotta`; the defaults are published for CIFAR-10."""

    presets = published(
        "cifar10",
        cifar100={"confidence": 0.72},
        imagenet={
            "optimizer": "sgd",
            "lr": 0.01,
            "nesterov": True,
            "confidence": 0.1,
            "restore": 0.001,
            "symmetric": True,
        },
    )

    confidence: float = hp(
        0.92,
        low=0.0,
        high=1.0,
        search=uniform(0.1, 0.95),
        help="mean confidence of the source model under which the teacher averages (p_th)",
    )
    n_augmentations: int = hp(32, low=1, help="augmented batches that the teacher averages over")
    teacher_decay: float = hp(0.999, low=0.0, high=1.0, help="share the teacher keeps (α)")
    restore: float = hp(
        0.01, low=0.0, high=1.0, help="chance of each weight to return to the source's (p)"
    )
    symmetric: bool = hp(False, help="half of the loss with student and teacher exchanged")
    draws_per_image: bool = hp(False, help="augment every image by itself, not the batch as one")


class Cotta(GradientMethod):
    """Trains all parameters towards a slow, augmentation-averaged teacher, and restores some.

    The teacher averages its logits over augmented batches where the source model is unsure on the
    batch, and predicts the batch itself where it is sure, which takes 3 forwards. Its logits are
    returned. The authors' CIFAR code makes the augmented passes in either case and drops them in
    the second; here they are made where they are used. It trains and restores parameters named
    weight or bias only; here all are, so that class tokens and the like belong. Dropout stays off.
    Of pixels, the authors' segmentation code averages over several sizes and mirror images. Here
    the augmented batches of a model that predicts every pixel leave pixels in their place (colours,
    blur and noise), and every second one is mirrored and its logits are mirrored back.
    """

    name = "cotta"
    config_class = CottaConfig
    config: CottaConfig
    card = GradientMethod.card.variant(
        authors="Wang et al.",
        year=2022,
        paper="https://arxiv.org/abs/2203.13591",
        code="https://github.com/qinenergy/cotta",
        forwards=34,
        dense=True,
    )

    teacher: nn.Module
    anchor: nn.Module

    def setup(self) -> None:
        super().setup()
        self.teacher = copy_frozen(self.model)
        self.anchor = copy_frozen(self.model)
        self._augmentation = CottaAugmentation(per_image=self.config.draws_per_image)

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        check_images(x, self.normalization)
        student = self.run(x).logits
        share_buffers(self.teacher, self.model)  # running statistics, if there are any, are one's
        target = self._target(x, self.generator)
        loss = cross_entropy_between(target, student).mean()
        if self.config.symmetric:
            loss = (loss + cross_entropy_between(student, target).mean()) / 2
        return target, loss

    def infer(self, x: Tensor) -> Tensor:
        return self._target(x, copy_generator(self.generator))

    def plan_export(self) -> ExportPlan:
        """The teacher predicts, without the average over augmented views."""
        lost = ("Unsure batches are predicted by an average over augmented views.",)
        return dataclasses.replace(super().plan_export(), model=self.teacher, lost=lost)

    def after_update(self, x: Tensor) -> None:
        follow(self.teacher, self.model, self.config.teacher_decay)
        source = dict(self.anchor.named_parameters())
        for name, parameter in self.trainable(self.model, self.config).items():
            draws = torch.rand(parameter.shape, generator=self.generator)
            chosen = (draws < self.config.restore).to(parameter.device)
            parameter.copy_(torch.where(chosen, source[name], parameter))

    @torch.no_grad()
    def _target(self, x: Tensor, generator: torch.Generator) -> Tensor:
        first = self.run(x, moves=False, model=self.anchor)
        sure = log_probs(first.logits).amax(dim=1).exp()
        if float(sure.mean()) >= self.config.confidence:
            return self.run(x, moves=False, model=self.teacher).logits
        found = self._predict_augmented(x, first.grid, generator)
        if first.grid is None:
            return torch.stack(list(found)).mean(dim=0)
        # Added up, because the logits of all pixels of all batches would take too much memory.
        return functools.reduce(operator.add, found) / self.config.n_augmentations

    def _predict_augmented(
        self, x: Tensor, grid: Grid | None, generator: torch.Generator
    ) -> Iterator[Tensor]:
        """Yield the teacher's logits of augmented batches; those of pixels are in their place."""
        how = dataclasses.replace(self._augmentation, in_place=grid is not None)
        for number in range(self.config.n_augmentations):
            changed = augment(how, x, self.normalization, generator)
            is_mirrored = grid is not None and number % 2 == 1
            changed = changed.flip(-1) if is_mirrored else changed
            logits = self.run(changed, moves=False, model=self.teacher).logits
            yield to_rows(to_maps(logits, grid).flip(-1)) if grid and is_mirrored else logits
