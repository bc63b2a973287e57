"""Residual networks for 32×32 images: the forms whose weights, or results, are published.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, and "Identity Mappings in Deep
Residual Networks", ECCV 2016. All take images in [0, 1] and normalise them themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.errors import UnsuitableModel
from acclimate.zoo.blocks import BasicBlock, Bottleneck, PreactivationBlock

_WIDTHS = (16, 32, 64)  # of the three stages of a residual network for CIFAR


class ImageModel(nn.Module):
    """The part that all share: images in [0, 1] are normalised inside.

    Args:
        mean: mean of each input channel, taken off first.
        std: standard deviation of each input channel, divided by then.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(tuple(mean)).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(tuple(std)).view(1, -1, 1, 1))

    def normalize(self, x: Tensor) -> Tensor:
        """Return (x − mean) / std by channel."""
        return (x - self.mean) / self.std


class CifarResNet(ImageModel):
    """ResNet-`depth` for CIFAR as in the paper: 16, 32, 64 channels and option-A shortcuts.

    Args:
        depth: number of layers, 6·k + 2 with k blocks in each of three stages.
        n_classes: number of logits.
        mean: mean of each input channel.
        std: standard deviation of each input channel.
    """

    def __init__(
        self, depth: int, n_classes: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__(mean, std)
        block = partial(BasicBlock, projects=False)
        self.stem = nn.Conv2d(len(mean), 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.stage1, self.stage2, self.stage3 = _three_stages(depth, 16, block)
        self.head = nn.Linear(_WIDTHS[-1], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (n, n_classes)."""
        x = F.relu(self.norm(self.stem(self.normalize(x))))
        features = self.stage3(self.stage2(self.stage1(x))).mean(dim=(2, 3))
        return self.head(features)  # type: ignore[no-any-return]


class WideStemResNet(ImageModel):
    """A ResNet-`depth` for CIFAR with a stem of 64 channels and a ReLU after stages, not blocks.

    The form of the CIFAR-100 weights of https://github.com/karanchahal/distiller. The last map is
    pooled by 4, so that images of 32×32 have 4 · 64 features. Arguments as for `CifarResNet`.
    """

    def __init__(
        self, depth: int, n_classes: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__(mean, std)
        block = partial(BasicBlock, ends_in_relu=False)
        self.stem = nn.Conv2d(len(mean), 64, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.stage1, self.stage2, self.stage3 = _three_stages(depth, 64, block)
        self.head = nn.Linear(4 * _WIDTHS[-1], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (n, n_classes)."""
        x = F.relu(self.norm(self.stem(self.normalize(x))))
        for stage in (self.stage1, self.stage2, self.stage3):
            x = F.relu(stage(x))
        return self.head(F.avg_pool2d(x, 4).flatten(1))  # type: ignore[no-any-return]


class PreactivationResNet(ImageModel):
    """ResNet-`depth` for CIFAR with pre-activation and shortcuts without parameters.

    The ResNet-26 of TTT (https://github.com/yueatsprograms/ttt_cifar_release) and, with group
    normalisation, of MEMO (https://github.com/zhangmarvin/memo).

    Args:
        depth: number of layers, 6·k + 2 with k blocks in each of three stages.
        n_classes: number of logits.
        mean: mean of each input channel.
        std: standard deviation of each input channel.
        n_groups: groups of each group normalisation; 0 means batch normalisation.
    """

    def __init__(
        self,
        depth: int,
        n_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        n_groups: int = 0,
    ) -> None:
        super().__init__(mean, std)
        norm: Callable[[int], nn.Module]
        norm = partial(nn.GroupNorm, n_groups) if n_groups else nn.BatchNorm2d
        self.stem = nn.Conv2d(len(mean), 16, 3, padding=1, bias=False)
        block = partial(PreactivationBlock, norm=norm)
        self.stage1, self.stage2, self.stage3 = _three_stages(depth, 16, block)
        self.norm = norm(_WIDTHS[-1])
        self.head = nn.Linear(_WIDTHS[-1], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (n, n_classes)."""
        x = self.stage3(self.stage2(self.stage1(self.stem(self.normalize(x)))))
        return self.head(F.relu(self.norm(x)).mean(dim=(2, 3)))  # type: ignore[no-any-return]


class SmallStemResNet(ImageModel):
    """The four-stage ResNet made for ImageNet, with a 3×3 stem and no pooling after it.

    The layout of TTT++ (https://github.com/vita-epfl/ttt-plus-plus).

    Args:
        n_blocks: blocks in each of the four stages.
        bottleneck: whether blocks are bottlenecks, with four times the output channels.
        n_classes: number of logits.
        mean: mean of each input channel.
        std: standard deviation of each input channel.
    """

    def __init__(
        self,
        n_blocks: Sequence[int],
        bottleneck: bool,
        n_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__(mean, std)
        block: Callable[[int, int, int], nn.Module] = Bottleneck if bottleneck else BasicBlock
        factor = 4 if bottleneck else 1
        self.stem = nn.Conv2d(len(mean), 64, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.stage1 = _stage(n_blocks[0], 64, 64 * factor, 1, block)
        self.stage2 = _stage(n_blocks[1], 64 * factor, 128 * factor, 2, block)
        self.stage3 = _stage(n_blocks[2], 128 * factor, 256 * factor, 2, block)
        self.stage4 = _stage(n_blocks[3], 256 * factor, 512 * factor, 2, block)
        self.head = nn.Linear(512 * factor, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (n, n_classes)."""
        x = F.relu(self.norm(self.stem(self.normalize(x))))
        x = self.stage4(self.stage3(self.stage2(self.stage1(x))))
        return self.head(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


class ShortResNet(ImageModel):
    """ResNet-9: two residual blocks between plain convolutions, made to be trained in minutes.

    The layout of D. Page's entry to DAWNBench (https://github.com/davidcpage/cifar10-fast), narrow
    enough that the weights fit into 1.5 MB, and with the mean of each channel as features.

    Args:
        n_classes: number of logits.
        mean: mean of each input channel.
        std: standard deviation of each input channel.
        widths: channels of the stem and after each of the three halvings.
    """

    def __init__(
        self,
        n_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        widths: tuple[int, int, int, int] = (16, 32, 64, 112),
    ) -> None:
        super().__init__(mean, std)
        first, second, third, fourth = widths
        self.stem = _rectified(len(mean), first)
        self.stage1 = nn.Sequential(
            _rectified(first, second), nn.MaxPool2d(2), _RectifiedPair(second)
        )
        self.stage2 = nn.Sequential(_rectified(second, third), nn.MaxPool2d(2))
        self.stage3 = nn.Sequential(
            _rectified(third, fourth), nn.MaxPool2d(2), _RectifiedPair(fourth)
        )
        self.head = nn.Linear(fourth, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (n, n_classes)."""
        x = self.stage3(self.stage2(self.stage1(self.stem(self.normalize(x)))))
        return self.head(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


class _RectifiedPair(nn.Module):
    """Two rectified convolutions with the input added: the sum itself is not rectified."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.first, self.second = _rectified(n, n), _rectified(n, n)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))  # type: ignore[no-any-return]


def _rectified(n_in: int, n_out: int) -> nn.Sequential:
    conv = nn.Conv2d(n_in, n_out, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(n_out), nn.ReLU())


def _three_stages(
    depth: int, n_stem: int, block: Callable[[int, int, int], nn.Module]
) -> tuple[nn.Sequential, nn.Sequential, nn.Sequential]:
    """Return the stages of a residual network for CIFAR."""
    if depth < 8 or depth % 6 != 2:
        raise UnsuitableModel(
            "out_of_range",
            "Expected a depth of 8, 14, 20, … (6·k + 2) for a residual network for CIFAR, found "
            f"{depth}.",
            option="depth",
            found=depth,
        )
    n_blocks = (depth - 2) // 6
    first, second, third = _WIDTHS
    return (
        _stage(n_blocks, n_stem, first, 1, block),
        _stage(n_blocks, first, second, 2, block),
        _stage(n_blocks, second, third, 2, block),
    )


def _stage(
    n_blocks: int, n_in: int, n_out: int, stride: int, block: Callable[[int, int, int], nn.Module]
) -> nn.Sequential:
    first = block(n_in, n_out, stride)
    return nn.Sequential(first, *(block(n_out, n_out, 1) for _ in range(n_blocks - 1)))
