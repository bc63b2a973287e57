"""DeepLabV3+ with a ResNet-50 at an output stride of 16, with random weights: for measurements."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def block(n_in: int, n_out: int, kernel: int = 1, **options: int) -> nn.Sequential:
    """Return a convolution, BatchNorm and a ReLU."""
    padding = options.get("dilation", 1) * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, kernel, padding=padding, bias=False, **options),
        nn.BatchNorm2d(n_out),
        nn.ReLU(inplace=True),
    )


def separable(n_in: int, n_out: int, dilation: int = 1) -> nn.Sequential:
    """Return a depthwise convolution, and a pointwise one with BatchNorm and a ReLU."""
    spread = nn.Conv2d(n_in, n_in, 3, padding=dilation, dilation=dilation, groups=n_in, bias=False)
    return nn.Sequential(spread, *block(n_in, n_out))


class Bottleneck(nn.Module):
    """The block of a ResNet-50."""

    def __init__(self, n_in: int, width: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *block(n_in, width),
            *block(width, width, 3, stride=stride, dilation=dilation),
            *block(width, 4 * width)[:2],
        )
        changes = stride > 1 or n_in != 4 * width
        self.shortcut = block(n_in, 4 * width, stride=stride)[:2] if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the features."""
        return F.relu(self.body(x) + self.shortcut(x))


def stage(n_in: int, width: int, n_blocks: int, stride: int, dilation: int = 1) -> nn.Sequential:
    """Return the blocks of one resolution."""
    first = Bottleneck(n_in, width, stride, dilation)
    rest = [Bottleneck(4 * width, width, 1, dilation) for _ in range(n_blocks - 1)]
    return nn.Sequential(first, *rest)


class DeepLab(nn.Module):
    """DeepLabV3+: a ResNet-50, atrous pyramid pooling, and a decoder at a quarter of the size."""

    def __init__(self, n_classes: int = 19) -> None:
        super().__init__()
        self.stem = nn.Sequential(*block(3, 64, 7, stride=2), nn.MaxPool2d(3, 2, padding=1))
        self.fine = stage(64, 64, 3, 1)
        self.middle = nn.Sequential(stage(256, 128, 4, 2), stage(512, 256, 6, 2))
        self.deep = stage(1024, 512, 3, 1, dilation=2)
        self.pyramid = nn.ModuleList(
            [block(2048, 256), *(separable(2048, 256, rate) for rate in (6, 12, 18))]
        )
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), *block(2048, 256))
        self.join = nn.Sequential(*block(5 * 256, 256))
        self.low = block(256, 48)
        self.decoder = nn.Sequential(separable(304, 256), separable(256, 256))
        self.head = nn.Conv2d(256, n_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of every pixel."""
        fine = self.fine(self.stem(x))
        deep = self.deep(self.middle(fine))
        branches = [branch(deep) for branch in self.pyramid]
        branches.append(enlarge(self.whole(deep), deep))
        joined = enlarge(self.join(torch.cat(branches, dim=1)), fine)
        logits: Tensor = self.head(self.decoder(torch.cat([joined, self.low(fine)], dim=1)))
        return enlarge(logits, x)


def enlarge(maps: Tensor, like: Tensor) -> Tensor:
    """Return maps of the size of others."""
    return F.interpolate(maps, like.shape[2:], mode="bilinear", align_corners=False)
