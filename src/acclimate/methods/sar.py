from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.functional.inputs import all_finite
from acclimate.functional.norm import lower_norm_parameters
from acclimate.methods.config import (
    EntropyConfig,
    GradientConfig,
    changed,
    hp,
    log_uniform,
    options,
    published,
)
from acclimate.methods.eta import EtaConfig
from acclimate.methods.gradient import copy_values
from acclimate.methods.tent import Tent
from acclimate.schema import Maybe, TensorOf

#: What the authors leave alone in a ResNet-50: 10 of its 53 normalisation layers.
TOP_OF_RESNET50 = 0.19
#: Of the moving mean loss, per update.
DECAY = 0.9


@options
class SkipTopConfig(EntropyConfig):
    """Options of entropy methods that leave the layers next to the output alone."""

    skip_top: float = hp(
        0.0,
        low=0.0,
        high=1.0,
        help="share of the normalisation layers, counted from the output, that do not move; the "
        f"authors': {TOP_OF_RESNET50} for a ResNet-50, 0.28 for a ViT-B, 0 for CIFAR models",
    )


class SkipTop(Tent):
    """A method that leaves a share of the normalisation layers, those next to the output, alone."""

    @classmethod
    def trainable(cls, model: nn.Module, config: Any) -> dict[str, nn.Parameter]:
        return lower_norm_parameters(model, config.skip_top)


@options
class SarConfig(SkipTopConfig):
    """Options of `sar`; rate and batches of 200 are the benchmarks' on CIFAR-10."""

    presets = published("cifar10", "cifar100", imagenet={"lr": 2.5e-4, "skip_top": TOP_OF_RESNET50})

    optimizer: str = changed(GradientConfig, "optimizer", "sgd")
    max_entropy: float = changed(EtaConfig, "max_entropy", 0.4)
    radius: float = hp(0.05, low=0.0, search=log_uniform(0.005, 0.5), help="of the climb (ρ)")
    recover_below: float = hp(
        0.2, low=0.0, help="restore the source when the moving mean loss is under this; 0: never"
    )


class Sar(SkipTop):
    """Minimises the entropy of sure predictions where the loss is flat, and recovers from collapse.

    The weights climb a short way up the loss, the gradient is taken there on the samples that are
    still sure, and applied where they were. If the moving mean of the second loss gets low, source
    weights, a fresh optimiser and no mean take over (`counts.restored`); the authors' code writes
    the low mean back, and so restores again and again. A batch without a sure sample changes
    nothing; their optimiser coasts on its momentum then. NSP, if added, is in the second gradient.
    The share `skip_top` of the layers, next to the output, does not move. The authors exclude by
    name: `layer4` of ResNets, blocks 9 to 11 of ViTs, and any layer that is called `norm`, or is
    inside a module of a name that ends so. The last rule is for the last layer of ViTs, but hits
    others, such as the stem of a model that calls it `norm`; no name matters here. Nothing is
    excluded in CIFAR's WideResNets: the default. Their rate for ViTs is 1e-3, and shrinks with
    small batches.
    """

    name = "sar"
    config_class = SarConfig
    config: SarConfig
    card = Tent.card.variant(
        authors="Niu et al.",
        year=2023,
        paper="https://arxiv.org/abs/2302.12400",
        code="https://github.com/mr-eggplant/SAR",
        forwards=2,
        backwards=2,
    )

    mean_loss: Tensor | None

    def setup(self) -> None:
        super().setup()
        self.add_state("mean_loss", None, Maybe(TensorOf(())))
        self._reliable: Tensor | None = None  # on the first pass of the batch under way

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the mean entropy of what is reliable, on a second pass: still reliable."""
        logits = self.run(x, moves=self._reliable is None).logits
        each = self.config.entropy_of(logits)
        reliable = each.detach() < self.config.max_entropy * math.log(logits.shape[1])
        if self._reliable is not None:
            reliable = reliable & self._reliable
        self._reliable = reliable
        return logits, each[reliable].mean() if bool(reliable.any()) else None

    def step(self, x: Tensor) -> Iterator[Tensor]:
        self._reliable = None
        yield from super().step(x)

    def differentiate(
        self, x: Tensor, loss: Tensor
    ) -> tuple[Tensor | None, Sequence[Tensor | None]]:
        """Return the gradients at the top of the climb; the weights are back where they were."""
        moved = list(self.parameters_moved.values())
        before = [parameter.detach().clone() for parameter in moved]
        try:
            gradients: Sequence[Tensor | None] = self.gradients_of(loss)
            if not all_finite([g for g in gradients if g is not None]):
                return loss, gradients  # which are counted as such, and not applied
            self._climb(moved, gradients)
            self.forget_pass()  # terms use the pass at the top of the climb
            _, second = self.loss(x)
            if second is None:
                return None, ()
            old, new = self.mean_loss, second.detach()
            self.mean_loss = new if old is None else DECAY * old.to(new) + (1 - DECAY) * new
            return self.add_terms(x, second)
        finally:
            copy_values(before, moved)

    def after_update(self, x: Tensor) -> None:
        if self.mean_loss is not None and bool(self.mean_loss < self.config.recover_below):
            self.restore_source()

    @torch.no_grad()
    def _climb(self, moved: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
        given = [(p, g) for p, g in zip(moved, gradients, strict=True) if g is not None]
        wide = torch.promote_types(moved[0].dtype, torch.float32)
        norms = [torch.linalg.vector_norm(g, dtype=wide) for _, g in given]
        step = self.config.radius / (torch.stack(norms).norm() + 1e-12)
        for parameter, gradient in given:
            parameter.add_(step.to(gradient) * gradient)
        # Autocast may hold low-precision copies of the weights as they were.
        self.weights_changed()
