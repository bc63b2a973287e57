"""Wide residual network for small images.

Zagoruyko & Komodakis, "Wide Residual Networks", BMVC 2016, https://arxiv.org/abs/1605.07146:
the pre-activation form, batch normalisation and ReLU before each convolution.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.errors import UnsuitableModel


class Block(nn.Module):
    """Two 3×3 convolutions with a shortcut around them.

    Args:
        n_in: input channels.
        n_out: output channels.
        stride: step of the first convolution.
        dropout: probability of dropping a value between the convolutions.
    """

    def __init__(self, n_in: int, n_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(n_in)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.dropout = nn.Dropout(dropout)
        changes_shape = n_in != n_out or stride != 1
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if changes_shape else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both paths."""
        activated = F.relu(self.norm1(x))
        # Where the shape changes the shortcut starts after the activation, as in the paper's code.
        around = x if self.shortcut is None else self.shortcut(activated)
        through = self.conv1(activated)
        through = self.conv2(self.dropout(F.relu(self.norm2(through))))
        return around + through  # type: ignore[no-any-return]


class WideResNet(nn.Module):
    """WRN-`depth`-`width` for images in [0, 1], which it normalises itself.

    Args:
        depth: number of layers; must be 6·k + 4, with k blocks in each of the three stages.
        width: factor by which each stage is wider than 16, 32 and 64 channels.
        n_classes: number of logits.
        dropout: probability of dropping a value inside a block.
        mean: mean of each input channel, taken off before the first layer.
        std: standard deviation of each input channel, divided by before the first layer.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        depth: int,
        width: int,
        n_classes: int,
        dropout: float = 0.0,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.25, 0.25, 0.25),
    ) -> None:
        super().__init__()
        if depth < 10 or depth % 6 != 4:
            raise UnsuitableModel(
                "out_of_range",
                "Expected a depth of 10, 16, 22, … (6·k + 4) for a wide residual network, found "
                f"{depth}.",
                option="depth",
                found=depth,
            )
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))
        n_blocks = (depth - 4) // 6
        widths = [16 * width, 32 * width, 64 * width]
        self.stem = nn.Conv2d(len(mean), 16, 3, padding=1, bias=False)
        self.stage1 = _stage(16, widths[0], n_blocks, 1, dropout)
        self.stage2 = _stage(widths[0], widths[1], n_blocks, 2, dropout)
        self.stage3 = _stage(widths[1], widths[2], n_blocks, 2, dropout)
        self.norm = nn.BatchNorm2d(widths[2])
        self.head = nn.Linear(widths[2], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (n, n_classes)."""
        x = self.stem((x - self.mean) / self.std)
        x = self.stage3(self.stage2(self.stage1(x)))
        features = F.relu(self.norm(x)).mean(dim=(2, 3))
        return self.head(features)  # type: ignore[no-any-return]

    def initialise(self, generator: torch.Generator) -> None:
        """Draw fresh weights: He's normal for convolutions, zero biases."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", generator=generator)
        nn.init.kaiming_normal_(self.head.weight, mode="fan_in", generator=generator)
        nn.init.zeros_(self.head.bias)


def _stage(n_in: int, n_out: int, n_blocks: int, stride: int, dropout: float) -> nn.Sequential:
    first = Block(n_in, n_out, stride, dropout)
    return nn.Sequential(first, *(Block(n_out, n_out, 1, dropout) for _ in range(n_blocks - 1)))
