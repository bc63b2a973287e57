from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.functional.augmentations import augment
from acclimate.functional.entropy import cross_entropy_between
from acclimate.functional.inputs import check_images
from acclimate.functional.precision import at_least_float32
from acclimate.functional.teacher import copy_frozen, copy_saved_buffers, follow
from acclimate.methods.config import hp, options, published, uniform
from acclimate.methods.rotta import MemoryTeacher, MemoryTeacherConfig
from acclimate.parts.features import Features


@options
class PettaConfig(MemoryTeacherConfig):
    """Options of `petta`; the defaults are the authors' for CIFAR, at batches of 64."""

    presets = published("cifar10", "cifar100", imagenet={"self_training": "teacher"})

    self_training: str = hp(
        "symmetric",
        choices=("symmetric", "teacher"),
        help="loss: symmetric cross entropy of teacher and student on both views, or cross entropy "
        "of the student with the teacher on the augmented one",
    )
    drift_weight: float = hp(
        10.0,
        low=0.0,
        search=uniform(1.0, 20.0),
        help="of the angle to the source's weights, at full drift (λ_0)",
    )
    source_weight: float = hp(
        1.0, low=0.0, help="of the cross entropy with the predictions of the source model"
    )
    means_rate: float = hp(
        0.05, low=0.0, high=1.0, help="share of a batch in the moving class means of features"
    )


class Petta(MemoryTeacher):
    """Does as RoTTA, and holds on to the source model the more the features have drifted.

    Drift is the distance of the moving class means of the teacher's features from the source's, in
    standard deviations, as a number from 0 to 1. It scales the penalty on leaving the direction of
    the source's weights, and slows the teacher down. A third term is the cross entropy with the
    source model, whose BatchNorm statistics move as those of student and teacher do. There is one
    update for each batch, on the memory; its samples have equal weights.
    The class moments come from `prepare`: source images with their labels. The authors' code takes
    them from the clean images of the test set, by predicted class. Classes with fewer than two
    source samples do not count. The authors' code moves scale and shift of BatchNorm only. Returns
    the teacher's logits, with the statistics kept. Four forwards and the backward are on the
    memory.
    """

    name = "petta"
    config_class = PettaConfig
    config: PettaConfig
    card = MemoryTeacher.card.variant(
        authors="Hoang et al.",
        year=2024,
        paper="https://arxiv.org/abs/2311.18193",
        code="https://github.com/hthieu166/petta",
        forwards=5,
        replays=True,
    )
    needs = (Features,)

    anchor: nn.Module
    class_means: Tensor

    def setup(self) -> None:
        super().setup()
        self.anchor = copy_frozen(self.model)
        moments = self.known_artifact.part("features")
        like = at_least_float32(next(iter(self.model.parameters())).detach()[:0])
        self.add_state("class_means", moments["class_mean"].to(like))
        self._variances, self._counts = moments["class_variance"], moments["class_count"]
        self._drift = 0.0

    @property
    def moving_statistics(self) -> str:
        """The statistics in use; running ones move twice in an update too, as robust ones do."""
        found = super().moving_statistics
        return "robust" if found == "running" else found

    def step(self, x: Tensor) -> Iterator[Tensor]:
        check_images(x, self.normalization)
        found = self.run(x, moves=False, model=self.teacher)
        yield found.logits
        self._drift = self._measure_drift(found.logits.argmax(dim=1))
        self._move_means(found.known_features, found.logits)
        for memory in self.remember(x, found.logits):
            items = memory.ordered()
        self.learn_from(items)

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        is_symmetric = self.config.self_training == "symmetric"
        with torch.no_grad():
            teacher = self.run(x, model=self.teacher).logits
        moves = self.moving_statistics == "robust"
        saving = copy_saved_buffers(self.model) if moves else nullcontext()
        with torch.set_grad_enabled(is_symmetric), saving:
            plain = self.run(x).logits  # it also moves the student's statistics
        with torch.no_grad():
            source = self.run(x, model=self.anchor).logits
        view = augment(self._augmentation, x, self.normalization, self.generator)
        student = self.run(view).logits
        each = cross_entropy_between(teacher, student)
        if is_symmetric:
            each = each + cross_entropy_between(student, teacher)
            each = each + cross_entropy_between(teacher, plain)
            each = (each + cross_entropy_between(plain, teacher)) / 4
        each = each + self.config.source_weight * cross_entropy_between(source, student)
        return student, each.mean() - self.config.drift_weight * self._drift * self._alignment()

    def after_update(self, x: Tensor) -> None:
        follow(self.teacher, self.model, 1 - (1 - self.config.teacher_decay) * (1 - self._drift))

    def _alignment(self) -> Tensor:
        source, trained = dict(self.anchor.named_parameters()), self.trained().items()
        pairs = ((parameter.flatten(), source[name].flatten()) for name, parameter in trained)
        return torch.stack([F.cosine_similarity(*pair, dim=0) for pair in pairs]).mean()

    def _measure_drift(self, labels: Tensor) -> float:
        """Return how far the class means are from the source's, for the predicted classes."""
        usable = (self._counts > 1).tolist()
        seen = [label for label in sorted(set(labels.tolist())) if usable[label]]
        if not seen:
            return 0.0
        means, source = self.class_means, self.initial()["method"]["class_means"]
        gap, variances = means - source.to(means), self._variances.to(means)
        return 1 - math.exp(-float((gap[seen] ** 2 / (variances[seen] + 1e-6)).mean()))

    def _move_means(self, features: Tensor, logits: Tensor) -> None:
        """Move the mean of every predicted class towards the features of its samples."""
        means = self.class_means.clone()
        usable = features.isfinite().all(dim=1) & logits.isfinite().all(dim=1)
        features, labels = features[usable].to(means), logits[usable].argmax(dim=1)
        for label in sorted(set(labels.tolist())):
            mean = features[labels == label].mean(dim=0)
            means[label] = torch.lerp(means[label], mean, self.config.means_rate)
        self.class_means = means
