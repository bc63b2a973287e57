from __future__ import annotations

import warnings

import torch
from torch import Tensor

from acclimate.artifact import Artifact
from acclimate.errors import AcclimateWarning, UnsuitableModel
from acclimate.functional.contrast import Alignment
from acclimate.methods.config import (
    GradientConfig,
    MethodCard,
    changed,
    hp,
    log_uniform,
    options,
    published,
)
from acclimate.methods.gradient import GradientMethod
from acclimate.parts.contrast import Contrast
from acclimate.parts.contrastive_head import head_from_weights
from acclimate.schema import Number


@options
class TfaConfig(GradientConfig):
    """Options of `tfa`; the defaults are the authors' for CIFAR-10."""

    presets = published(
        "cifar10",
        cifar100={"lr": 1e-4, "encoder_scale": 5.0, "head_scale": 20.0, "window": 2048},
    )

    optimizer: str = changed(GradientConfig, "optimizer", "sgd")
    lr: float = hp(
        1e-2, low=0.0, search=log_uniform(1e-5, 1e-1), help="learning rate of the optimiser"
    )
    encoder_scale: float = hp(
        0.05, low=0.0, search=log_uniform(1e-2, 10), help="weight of the encoder's space"
    )
    head_scale: float = hp(
        0.2, low=0.0, search=log_uniform(1e-2, 50), help="weight of the projection head's space"
    )
    mean_weight: float = hp(
        0.5, low=0.0, help="weight of the distance of means beside that of covariances"
    )
    window: int = hp(
        1536,
        low=2,
        high=1e6,
        help="samples that moments are taken over, queue and batch together; up to the batch "
        "size: no queue",
    )


class Tfa(GradientMethod):
    """Pulls mean and covariance of the features back to those of the source.

    The method `align` of the authors' code for CIFAR. The features are those of the encoder and
    what a projection head makes of them; the head comes from training jointly with a contrastive
    loss. If the artifact has none, the encoder's space is aligned alone, with a warning unless
    `head_scale` is 0. Classifier and head are fixed. Moments are taken over the batch and a queue
    of earlier features, once the queue is full.
    The authors' script is offline: it passes over the test set up to 500 times, and its learning
    rate and its end depend on the test error. Here each batch is seen once. It also predicts with
    running statistics that move; here the batch's own, those of the update, are used. Its queue
    hands out the tensor that it then writes the batch into, so that moments count every batch
    twice, once without a gradient, in the place of the oldest one; here it counts once.
    """

    name = "tfa"
    config_class = TfaConfig
    config: TfaConfig
    card = MethodCard(
        authors="Liu et al.",
        year=2021,
        paper="https://papers.nips.cc/paper/2021/hash/b618c3210e934362ac261db280128c22-Abstract.html",
        code="https://github.com/vita-epfl/ttt-plus-plus",
        moves="all parameters of the encoder",
        backwards=1,
    )
    needs = (Contrast,)

    alignment: Alignment
    queue: Tensor
    n_queued: int

    def setup(self) -> None:
        info, like = self.known_artifact.info, next(iter(self.model.parameters()))
        self.alignment = self._build_alignment(self.known_artifact, like)
        super().setup()
        fixed = {id(p) for p in self.model.get_submodule(info.known_head).parameters()}
        if all(id(parameter) in fixed for parameter in self.parameters_moved.values()):
            raise UnsuitableModel(
                "nothing_to_train",
                f"{self.name} moves the encoder, but every parameter before the head "
                f'"{info.known_head}" is frozen. Unfreeze it: model.requires_grad_(True).',
            )
        self.add_state("queue", like.new_zeros(self.config.window, info.known_width))
        self.add_state("n_queued", 0, Number(int, low=0, high=self.config.window))
        self._fresh: Tensor | None = None

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.run(x)
        features = found.known_features
        self._fresh = features.detach()
        # Queued rows carry no gradient, and the head is fixed: one queue serves both spaces.
        return found.logits, self.alignment(torch.cat([self._queued(len(x)), features]))

    def after_update(self, x: Tensor) -> None:
        """Put the batch's features at the end of the queue; the oldest leave it."""
        if self._fresh is not None:
            fresh = self._fresh[-self.config.window :].to(self.queue.dtype)
            self.queue = torch.cat([self.queue[len(fresh) :], fresh])
            self.n_queued = min(self.n_queued + len(fresh), self.config.window)
            self._fresh = None

    def _queued(self, n: int) -> Tensor:
        """Return the features that fill the window beside a batch of n; none if they do not."""
        n_wanted = self.config.window - n
        return self.queue[-n_wanted:] if 0 < n_wanted <= self.n_queued else self.queue[:0]

    def _build_alignment(self, artifact: Artifact, like: Tensor) -> Alignment:
        config, head = self.config, None
        if artifact.parts["contrast"]["head"] is not None:
            head = head_from_weights(artifact.part("contrast_head")).to(like)
        elif config.head_scale:
            warnings.warn(
                AcclimateWarning(
                    "encoder_only",
                    f"the artifact has no projection head: {self.name} aligns the encoder's "
                    "features alone. Say head_scale=0 if that is what you want, or prepare a "
                    "jointly trained model with parts=[Contrast(head=FILE)] (see "
                    "`acclimate train --objective simclr`).",
                ),
                stacklevel=2,
            )
        scales = (config.encoder_scale, config.head_scale)
        moments = artifact.part("contrast")
        return Alignment(moments, head, scales, config.mean_weight).to(like.device)
