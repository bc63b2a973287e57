from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.export import ExportPlan
from acclimate.forward import Forward
from acclimate.functional.augmentations import CottaAugmentation, augment
from acclimate.functional.balanced_norm import mix_classes, use_balanced
from acclimate.functional.entropy import entropy
from acclimate.functional.inputs import check_images
from acclimate.functional.norm import Statistics, batch_norm_layers
from acclimate.functional.teacher import copy_frozen
from acclimate.methods.config import (
    Config,
    GradientConfig,
    MethodCard,
    Problem,
    changed,
    hp,
    log_uniform,
    options,
    published,
    uniform,
)
from acclimate.methods.gradient import NormLayersMethod
from acclimate.schema import Fields, Schema, TensorOf


@options
class TribeConfig(GradientConfig):
    """Options of `tribe`; the defaults are the authors' for CIFAR-10, at batches of 64."""

    presets = published(
        "cifar10",
        cifar100={"class_rate": 0.05, "class_sharing": 0.1, "max_entropy": 0.2},
        imagenet={"lr": 5e-4, "class_rate": 0.5, "class_sharing": 0.5, "max_entropy": 0.4},
    )

    statistics: str = changed(GradientConfig, "statistics", "source")
    class_rate: float = hp(
        0.01,
        low=0.0,
        search=log_uniform(1e-3, 1.0),
        help="step of the statistics of a class for each of its samples (η)",
    )
    class_sharing: float = hp(
        0.0, low=0.0, high=1.0, help="share of the mean step that all classes take (γ)"
    )
    max_entropy: float = hp(
        0.05,
        low=0.0,
        search=uniform(0.02, 0.6),
        help="learn from the teacher where its entropy is under this share of log K (H_0)",
    )
    anchor_weight: float = hp(
        0.5, low=0.0, help="of the distance between the logits of teacher and source model (λ)"
    )
    draws_per_image: bool = hp(False, help="augment every image by itself, not the batch as one")


class Tribe(NormLayersMethod):
    """Trains a student on sure predictions, with BatchNorm statistics balanced over classes.

    Student and teacher are one network; only their BatchNorm statistics differ. The teacher
    predicts with the statistics it has. Then the statistics of teacher, student (on an augmented
    view) and frozen source model move by the predicted classes (`functional.balanced_norm`), the
    student learns the teacher's sure predictions, and the teacher stays near the source model. A
    batch without a sure prediction moves the statistics and nothing else; the authors' code
    averages over nothing. The balanced statistics are used with `statistics="source"`, the default;
    any other value replaces them by what it names. Models without BatchNorm are refused. The
    authors' code trains scale and shift of BatchNorm only, not of other normalisation layers.
    """

    name = "tribe"
    config_class = TribeConfig
    config: TribeConfig
    card = MethodCard(
        authors="Su et al.",
        year=2024,
        paper="https://arxiv.org/abs/2309.14949",
        code="https://github.com/Gorilla-Lab-SCUT/TRIBE",
        moves="scale and shift of normalisation layers, BatchNorm statistics by class",
        forwards=4,
        backwards=1,
    )

    anchor: nn.Module
    moments: dict[str, dict[str, Tensor]]

    @classmethod
    def check(cls, model: nn.Module, config: Config) -> list[Problem]:
        if any(layer.running_mean is not None for layer in batch_norm_layers(model).values()):
            return super().check(model, config)
        return [
            Problem(
                "normalisation",
                f"no BatchNorm layer with running statistics was found; {cls.name} balances those.",
                'Use "roid" or "sar", which work with any normalisation.',
            )
        ]

    def setup(self) -> None:
        super().setup()
        self.anchor = copy_frozen(self.model)
        layers: dict[str, Schema] = {
            name: TensorOf((2, "classes", len(layer.running_mean)))
            for name, layer in batch_norm_layers(self.model).items()
            if layer.running_mean is not None
        }
        roles = ("teacher", "student", "anchor")
        schema = Fields({role: Fields(layers, partial=True) for role in roles})
        self.add_state("moments", {role: {} for role in roles}, schema)
        self._augmentation = CottaAugmentation(per_image=self.config.draws_per_image)
        self._role = "teacher"
        self._predicted: Tensor | None = None

    def plan_export(self) -> ExportPlan:
        plan = super().plan_export()
        if self.statistics != "source":
            return plan
        moments = {name: mix_classes(own) for name, own in self.moments["teacher"].items()}
        return replace(plan, moments=moments)

    @property
    def moving_statistics(self) -> str:
        """The statistics that change within a batch."""
        return "balanced" if self.statistics == "source" else super().moving_statistics

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        check_images(x, self.normalization)
        with torch.no_grad():
            logits = self.run(x, moves=False).logits
        teacher = self._run_as("teacher", x, logits)
        view = augment(self._augmentation, x, self.normalization, self.generator)
        student = self._run_as("student", view, logits)
        with torch.no_grad():
            anchor = self._run_as("anchor", x, logits, self.anchor)
        sure = entropy(teacher.detach()) < self.config.max_entropy * math.log(logits.shape[1])
        if not bool(sure.any()):
            return logits, None
        targets = teacher.detach().argmax(dim=1)
        learned = F.cross_entropy(student[sure], targets[sure])
        held = F.mse_loss(teacher[sure], anchor[sure])
        return logits, learned + self.config.anchor_weight * held

    def _run_as(
        self, role: str, x: Tensor, predicted: Tensor, model: nn.Module | None = None
    ) -> Tensor:
        """Return the logits with the statistics of a role, which move by predicted classes."""
        self._role, self._predicted = role, predicted
        # Statistics that are not balanced belong to the network; the teacher's pass moves them.
        moves = role != "student" or self.moving_statistics == "balanced"
        try:
            return self.run(x, moves=moves, model=model).logits
        finally:
            self._role, self._predicted = "teacher", None

    def _pass(
        self, x: Tensor, moves: bool, statistics: Statistics | None, model: nn.Module | None
    ) -> Forward:
        if statistics is not None or self.moving_statistics != "balanced":
            return super()._pass(x, moves, statistics, model)
        own, predicted, config = self.moments[self._role], self._predicted, self.config
        target = self.model if model is None else model
        if predicted is None or not moves:
            with use_balanced(target, own):
                return super()._pass(x, moves, statistics, model)
        labels, n_classes = predicted.argmax(dim=1), predicted.shape[1]
        rates = config.class_rate, config.class_sharing
        with use_balanced(target, own, labels, n_classes, *rates) as moved:
            result = super()._pass(x, moves, statistics, model)
        self.moments = {**self.moments, self._role: {**own, **moved}}
        return result
