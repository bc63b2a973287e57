from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from acclimate.export import ExportPlan
from acclimate.functional.augmentations import CottaAugmentation, augment
from acclimate.functional.entropy import cross_entropy_between, entropy
from acclimate.functional.inputs import check_images
from acclimate.functional.reservoir import BalancedMemory, Item
from acclimate.functional.teacher import copy_frozen, follow
from acclimate.methods.config import GradientConfig, MethodCard, changed, hp, options, published
from acclimate.methods.gradient import NormLayersMethod
from acclimate.schema import LARGEST_COUNT, Fields, Maybe, Schema, TensorOf
from acclimate.snapshot import Tree


@options
class MemoryTeacherConfig(GradientConfig):
    """Options of methods with a teacher and a memory that is balanced over classes."""

    statistics: str = changed(GradientConfig, "statistics", "robust")
    statistics_momentum: float = changed(GradientConfig, "statistics_momentum", 0.05)
    memory_size: int = hp(64, low=1, help="images in the memory (N)")
    age_weight: float = hp(1.0, low=0.0, help="of age, in what the memory lets go (λ_t)")
    uncertainty_weight: float = hp(1.0, low=0.0, help="of uncertainty, in the same (λ_u)")
    teacher_decay: float = hp(0.999, low=0.0, high=1.0, help="share the teacher keeps (1 − ν)")
    draws_per_image: bool = hp(False, help="augment every image by itself, not the batch as one")


def _memory_schema(size: int) -> Schema:
    label = TensorOf((size,), torch.int64, low=-1, below="classes")
    return Maybe(
        Fields(
            {
                "images": TensorOf((size, ...)),
                "labels": label,
                "ages": TensorOf((size,), torch.int64, low=0, high=LARGEST_COUNT),
                "uncertainties": TensorOf((size,), torch.float64, low=0),
            }
        )
    )


class MemoryTeacher(NormLayersMethod):
    """A method that predicts with a teacher and learns from a memory balanced over classes."""

    config_class = MemoryTeacherConfig
    config: MemoryTeacherConfig
    card = MethodCard(
        moves="scale and shift of normalisation layers, BatchNorm statistics",
        forwards=3,
        backwards=1,
        replays=True,
    )

    teacher: nn.Module
    memory: Tree

    def setup(self) -> None:
        super().setup()
        self.teacher = copy_frozen(self.model)
        self.add_state("memory", None, _memory_schema(self.config.memory_size))
        self._augmentation = CottaAugmentation(per_image=self.config.draws_per_image)

    def infer(self, x: Tensor) -> Tensor:
        return self.run(x, moves=False, model=self.teacher).logits

    def plan_export(self) -> ExportPlan:
        return replace(super().plan_export(), model=self.teacher)

    def remember(self, x: Tensor, logits: Tensor) -> Iterator[BalancedMemory]:
        """Put the samples into the memory one by one; yield it after each."""
        config, items = self.config, BalancedMemory.read_tree(self.memory)
        weights = config.age_weight, config.uncertainty_weight
        memory = BalancedMemory(config.memory_size, logits.shape[1], *weights, items)
        labels, uncertainties = logits.argmax(dim=1).tolist(), entropy(logits).tolist()
        for image, label, uncertainty in zip(x, labels, uncertainties, strict=True):
            if math.isfinite(uncertainty):  # what overflowed in the model teaches nothing
                memory.add(image, label, uncertainty)
            yield memory
        self.memory = memory.to_tree()

    def learn_from(self, items: Sequence[Item]) -> None:
        """Take one update on items of the memory."""
        if not items:
            self.counts.skip("nothing_selected")
            return
        images = torch.stack([item.image for item in items])
        if self.is_single(images):
            self.counts.skip("single")
            return
        self.weights_changed()  # which holds the weights from before the last update
        for _ in super().step(images):
            pass


@options
class RottaConfig(MemoryTeacherConfig):
    """Options of `rotta`; the defaults are published for CIFAR-10 and CIFAR-100."""

    # On ImageNet the benchmark of ROID runs it with the same values; its authors do not run it.
    presets = published("cifar10", "cifar100", "imagenet")

    update_every: int = hp(64, low=1, help="samples between two updates")


class Rotta(MemoryTeacher):
    """Learns from a memory balanced over classes, by a slow teacher with slow BatchNorm statistics.

    After every 64 samples the student learns to predict on the augmented memory what the teacher
    predicts on the memory as it is; what is younger counts more. A batch that is larger than that
    has several updates, a smaller one has one now and then. It works on streams of single images.
    The authors' code moves scale and shift of BatchNorm only. Returns the teacher's logits, with
    the statistics kept. Two of the forwards, and the backward, are on the memory, for each update.
    """

    name = "rotta"
    config_class = RottaConfig
    config: RottaConfig
    card = MemoryTeacher.card.variant(
        authors="Yuan et al.",
        year=2023,
        paper="https://arxiv.org/abs/2303.13899",
        code="https://github.com/BIT-DA/RoTTA",
        replays=True,
    )

    n_waiting: int

    def setup(self) -> None:
        super().setup()
        self.add_state("n_waiting", 0)  # samples since the last update was due
        self._weights = torch.ones(())

    def step(self, x: Tensor) -> Iterator[Tensor]:
        check_images(x, self.normalization)
        logits = self.infer(x)
        yield logits
        for memory in self.remember(x, logits):
            self.n_waiting = (self.n_waiting + 1) % self.config.update_every
            if self.n_waiting == 0:
                items = memory.ordered()
                ages = torch.tensor([item.age for item in items], dtype=torch.float64)
                self._weights = torch.sigmoid(-ages / self.config.memory_size)
                self.learn_from(items)

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            target = self.run(x, model=self.teacher).logits
        changed = augment(self._augmentation, x, self.normalization, self.generator)
        student = self.run(changed).logits
        each = cross_entropy_between(target, student)
        return student, (each * self._weights.to(each)).mean()

    def after_update(self, x: Tensor) -> None:
        follow(self.teacher, self.model, self.config.teacher_decay)
