"""What is minimised on several domains: cross entropy on each, and CORAL's penalty between them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.forward import get_logits
from acclimate.functional.views import ColorJitter, Crop, Flip, Grayscale, Views
from acclimate.introspect import get_head
from acclimate.training.domains.coral import coral_penalty
from acclimate.training.domains.model import freeze_statistics

#: The augmentation of DomainBed. It crops the file as it is; here crops are taken from the image
#: after it was brought to its size, which is the same for square images.
VIEWS = Views(
    (Crop(scale=(0.7, 1.0)), Flip(0.5), ColorJitter(0.3, 0.3, 0.3, 0.3), Grayscale(0.1)),
)


class DomainTrained(nn.Module):
    """From minibatches of several domains to the loss, in one module; BatchNorm stays frozen.

    Args:
        model: Takes images in [0, 1] and returns logits.
        head: Name of its head, whose input are the features.
        gamma: Weight of CORAL's penalty; 0 leaves it out, which is ERM.
        dropout: Probability of dropping a feature before the head.
    """

    def __init__(self, model: nn.Module, head: str, gamma: float, dropout: float) -> None:
        super().__init__()
        self.model = model
        self._head, self._gamma, self._dropout = head, gamma, dropout

    def train(self, mode: bool = True) -> DomainTrained:
        """Set the mode of all layers but BatchNorm, which keeps to its statistics."""
        super().train(mode)
        freeze_statistics(self)
        return self

    def forward(
        self, images: Sequence[Tensor], labels: Sequence[Tensor], generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of minibatches, and the penalty in it before it is weighed.

        Args:
            images: Of each domain, uint8, (batch, 3, height, width).
            labels: Of each domain, (batch,).
            generator: On the CPU; the only source of random draws besides dropout's.
        """
        sizes = [len(own) for own in images]
        x = VIEWS(torch.cat(list(images)).float() / 255, generator)
        features, logits = self._run(x.contiguous(memory_format=torch.channels_last))
        losses = [
            F.cross_entropy(own, y)
            for own, y in zip(logits.float().split_with_sizes(sizes), labels, strict=True)
        ]
        loss = torch.stack(losses).mean()  # every domain counts the same
        if self._gamma == 0:
            return loss, loss.new_zeros(())
        penalty = coral_penalty(features.split_with_sizes(sizes))
        return loss + self._gamma * penalty, penalty.detach()

    def _run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        taken: list[Tensor] = []

        def drop(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            taken.append(F.dropout(inputs[0].flatten(1), self._dropout, self.training))
            return (taken[-1].reshape(inputs[0].shape), *inputs[1:])

        hook = get_head(self.model, self._head).register_forward_pre_hook(drop)
        try:
            logits = get_logits(self.model(x))
        finally:
            hook.remove()
        return taken[0], logits
