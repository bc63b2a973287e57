from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from acclimate.export import ExportPlan, refuse_export
from acclimate.functional.augmentations import augment
from acclimate.functional.augmix import AugMix
from acclimate.functional.entropy import entropy_of_mean
from acclimate.functional.norm import Statistics
from acclimate.functional.rng import copy_generator
from acclimate.methods.config import GradientConfig, MethodCard, changed, hp, options, published
from acclimate.methods.gradient import GradientMethod
from acclimate.snapshot import copy_tree, load_tensors, model_tensors

_MOST_VALUES = 2**21  # in copies that are made at once, of as many images as that allows


@options
class MemoConfig(GradientConfig):
    """Options of `memo`; the defaults are published for CIFAR-10 and a ResNet-26 with GroupNorm."""

    # On CIFAR-100 the benchmark of ROID has the values of CIFAR-10; the authors do not run it.
    presets = published(
        "cifar10", "cifar100", imagenet={"lr": 2.5e-4, "n_copies": 64, "place": "crop"}
    )

    statistics: str = changed(GradientConfig, "statistics", "mixed")
    statistics_momentum: float = hp(
        1 / 17, low=0.0, high=1.0, help="share of the image; 1 / (N + 1) with a prior of N = 16"
    )
    optimizer: str = changed(GradientConfig, "optimizer", "sgd")
    lr: float = changed(GradientConfig, "lr", 0.005)
    n_copies: int = hp(32, low=1, help="augmented copies of an image (B)")
    severity: float = hp(1.0, low=0.1, high=10.0, help="highest level of AugMix's operations")
    place: str = hp(
        "shift", choices=("shift", "crop"), help="of copies: shifted (CIFAR) or cropped (ImageNet)"
    )


class Memo(GradientMethod):
    """Makes the mean prediction over augmented copies of one image sure, and forgets it after.

    A batch is taken image by image, each from the source weights and with a fresh optimiser, so
    that SWR and NSP have nothing to hold on to; the authors' code keeps the state of AdamW from one
    image to the next. Gradients flow through the image's share of the BatchNorm statistics, which
    in the authors' code they do not. What an operation leaves empty is grey; there it is dark red,
    which is how Pillow reads the 128 given. One of the forwards is of all copies. Whatever the
    model returns besides logits is the source model's.
    """

    name = "memo"
    config_class = MemoConfig
    config: MemoConfig
    card = MethodCard(
        authors="Zhang et al.",
        year=2022,
        paper="https://arxiv.org/abs/2110.09506",
        code="https://github.com/zhangmarvin/memo",
        moves="all parameters, for one image at a time",
        predicts="after",
        forwards=2,
        backwards=1,
        per_image=True,
    )

    takes_terms = False

    def setup(self) -> None:
        super().setup()
        self._augmentation = AugMix(self.config.severity, self.config.place)

    def needs_several_samples(self) -> bool:
        return False

    def step(self, x: Tensor) -> Iterator[Tensor]:
        yield self._predict_each(x, self.generator)

    def infer(self, x: Tensor) -> Tensor:
        """Predict one batch as it would be next; nothing is left of it in either case."""
        counts = copy.deepcopy(self.counts)
        try:
            return self._predict_each(x, copy_generator(self.generator))
        finally:
            self.counts = counts

    def plan_export(self) -> ExportPlan:
        """Refuse: every image is predicted by weights of its own."""
        raise refuse_export(self.name, "it predicts every image with weights adapted to it alone.")

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.run(x).logits
        return logits, entropy_of_mean(logits)

    def _predict_each(self, x: Tensor, generator: torch.Generator) -> Tensor:
        source = copy_tree(model_tensors(self.model))
        skipped = dict(self.counts.skipped)
        # One image has no batch statistics; those of the source are what is left.
        alone: Statistics | None = "source" if self.statistics == "batch" else None
        logits, n_copies = [], self.config.n_copies
        n_together = max(1, _MOST_VALUES // (n_copies * x[0].numel()))
        for start in range(0, len(x), n_together):
            images = x[start : start + n_together]
            copies = images.repeat_interleave(n_copies, dim=0)
            copies = augment(self._augmentation, copies, self.normalization, generator)
            for index in range(len(images)):
                own = copies[index * n_copies : (index + 1) * n_copies]
                try:
                    self._adapt_to(own, source)
                    logits.append(self.run(images[index : index + 1], statistics=alone).logits)
                finally:
                    load_tensors(self.model, source)
                    self._load_optimizer_tree({})  # the next image has a fresh optimiser
                    self.weights_changed()
        reasons = [why for why, n in self.counts.skipped.items() if n > skipped.get(why, 0)]
        if reasons:  # counted once for the batch, not for each image
            self.counts.skipped = skipped
            self.counts.skip(reasons[0])
        if self.returns_more:
            # What comes beside the logits must be of the whole batch, not of the first copies.
            self.return_from(self.run(x, moves=False, statistics="source"))
        return torch.cat(logits)

    def _adapt_to(self, copies: Tensor, source: dict[str, Tensor]) -> None:
        with self._trainable_only(), torch.enable_grad():
            _, loss = self.loss(copies)
            gradients = self.gradients_of(loss)
        # The image itself is met with the source's statistics, not with those of its copies.
        load_tensors(self.model, {name: source[name] for name, _ in self.model.named_buffers()})
        self.update(loss.detach(), gradients)
        self.weights_changed()
