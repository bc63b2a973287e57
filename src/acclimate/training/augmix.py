"""AugMix: images mixed with several chains of simple operations, and a loss that wants agreement.

Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty",
ICLR 2020, https://arxiv.org/abs/1912.02781.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.errors import InvalidConfig
from acclimate.training.augment import shift_and_flip
from acclimate.training.augmix_ops import OPERATIONS
from acclimate.training.objectives import Objective

_LEAST_LEVEL = 0.1


@dataclass(frozen=True)
class AugMixOptions:
    """How images are mixed; the defaults are the paper's.

    Attributes:
        severity: The highest level of an operation, up to 10.
        width: Number of chains; k in the paper.
        depth: The largest number of operations of a chain.
        alpha: Of the Dirichlet distribution of the chains' weights and of the Beta distribution of
            the part the chains have together; α in the paper.
    """

    severity: float = 3.0
    width: int = 3
    depth: int = 3
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not _LEAST_LEVEL < self.severity <= 10:
            raise InvalidConfig(
                "out_of_range",
                f"Expected a severity above {_LEAST_LEVEL} and at most 10, found {self.severity}.",
                option="severity",
                found=self.severity,
            )
        if self.width < 1 or self.depth < 1:
            option = "width" if self.width < 1 else "depth"
            raise InvalidConfig(
                "out_of_range",
                f"Expected width and depth to be at least 1, found {self.width} and {self.depth}.",
                option=option,
                found=getattr(self, option),
            )
        if not self.alpha > 0:
            raise InvalidConfig(
                "out_of_range",
                f"Expected alpha to be greater than 0, found {self.alpha}.",
                option="alpha",
                found=self.alpha,
            )


@dataclass(frozen=True)
class Draws:
    """All that is random in the mixing of a batch, on the CPU.

    Attributes:
        depths: Operations in each chain, (batch, width).
        operations: Which they are, positions in `OPERATIONS`, (batch, width, depth).
        levels: Their levels with the sign of the direction, (batch, width, depth).
        weights: Of the chains, (batch, width); they sum to 1.
        parts: Part of the chains in the result, (batch,).
    """

    depths: Tensor
    operations: Tensor
    levels: Tensor
    weights: Tensor
    parts: Tensor


def draw(n: int, options: AugMixOptions, generator: torch.Generator) -> Draws:
    """Return the random draws for a batch of `n` images."""
    chains = (n, options.width)
    steps = (*chains, options.depth)
    depths = torch.randint(1, options.depth + 1, chains, generator=generator)
    operations = torch.randint(0, len(OPERATIONS), steps, generator=generator)
    spread = options.severity - _LEAST_LEVEL
    levels = _LEAST_LEVEL + spread * torch.rand(steps, generator=generator)
    signs = 2 * torch.randint(0, 2, steps, generator=generator) - 1
    # PyTorch draws from these distributions with its global generator only.
    numpy = np.random.default_rng(int(torch.randint(0, 2**62, (1,), generator=generator)))
    weights = torch.from_numpy(numpy.dirichlet([options.alpha] * options.width, n)).float()
    parts = torch.from_numpy(numpy.beta(options.alpha, options.alpha, n)).float()
    return Draws(depths, operations, levels * signs, weights, parts)


@torch.no_grad()
def mix(x: Tensor, draws: Draws) -> Tensor:
    """Return images in [0, 1], each mixed with its chains.

    Args:
        x: uint8 images, (batch, channels, height, width).
        draws: For as many images.
    """
    n, width = draws.depths.shape
    chained = x.repeat_interleave(width, dim=0)
    depths = draws.depths.flatten()
    operations, levels = draws.operations.flatten(0, 1), draws.levels.flatten(0, 1)
    for step in range(operations.shape[1]):
        for number, operation in enumerate(OPERATIONS):
            # All images whose chain has this operation here go through it together.
            rows = ((depths > step) & (operations[:, step] == number)).nonzero().squeeze(1)
            if len(rows):
                place = rows.to(x.device)
                chained[place] = operation(chained[place], levels[rows, step])
    weights = draws.weights.to(x.device)[:, :, None, None, None]
    chains = (chained.view(n, width, *x.shape[1:]).float() * weights).sum(dim=1)
    parts = draws.parts.to(x.device)[:, None, None, None]
    mixed = ((1 - parts) * x.float() + parts * chains) / 255
    return mixed.contiguous(memory_format=torch.channels_last)


def jensen_shannon(logits: Tensor) -> Tensor:
    """Return the mean Jensen-Shannon divergence of several predictions for the same images.

    Args:
        logits: Shape (predictions, batch, classes).
    """
    log_probs = F.log_softmax(logits, dim=2)
    log_mean = torch.logsumexp(log_probs, dim=0) - math.log(len(logits))
    divergences = (log_probs.exp() * (log_probs - log_mean)).sum(dim=2)
    return divergences.mean()


class AugMixJsd(Objective):
    """Cross entropy on the shifted and flipped images, and agreement with two mixed forms of each.

    Args:
        options: How images are mixed.
        weight: Of the Jensen-Shannon divergence; λ in the paper.
        label_smoothing: Part of the target that is spread over all classes.
    """

    def __init__(
        self,
        options: AugMixOptions | None = None,
        weight: float = 12.0,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.options = AugMixOptions() if options is None else options
        self.weight = weight
        self.label_smoothing = label_smoothing

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Return cross entropy plus weighted divergence."""
        x = shift_and_flip(x, generator)
        twice = torch.cat([x, x])
        mixed = mix(twice, draw(len(twice), self.options, generator))
        # One pass for all three, so that they are normalised by the same batch statistics.
        logits = model(torch.cat([x.float() / 255, mixed])).float().view(3, len(x), -1)
        loss = F.cross_entropy(logits[0], y, label_smoothing=self.label_smoothing)
        return loss + self.weight * jensen_shannon(logits)
