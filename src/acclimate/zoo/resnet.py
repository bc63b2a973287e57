"""Residual networks for 32×32 images: the forms whose weights, or results, are published.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, and "Identity Mappings in Deep
Residual Networks", ECCV 2016. All take images in [0, 1] and normalise them themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.builtin.model import ImageModel, count_blocks, make_stage

#: Makes a block, or a shortcut around one, from the channels before and after it, and its stride.
Make = Callable[[int, int, int], nn.Module]


class PaddedSubsample(nn.Module):
    """Shortcut without parameters, option A of the paper: every second pixel, zeros around."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.n_before, self.stride = (n_out - n_in) // 2, stride
        self.n_after = n_out - n_in - self.n_before

    def forward(self, x: Tensor) -> Tensor:
        taken = x[:, :, :: self.stride, :: self.stride]
        return F.pad(taken, (0, 0, 0, 0, self.n_before, self.n_after))


class PaddedPool(nn.Module):
    """Shortcut without parameters: the mean of each square of pixels, zeros behind."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.n_after, self.stride = n_out - n_in, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(F.avg_pool2d(x, self.stride), (0, 0, 0, 0, 0, self.n_after))


class Projection(nn.Module):
    """Shortcut with parameters, option B of the paper: a 1×1 convolution and its normalisation."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
        self.norm = nn.BatchNorm2d(n_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))  # type: ignore[no-any-return]


def _connect(n_in: int, n_out: int, stride: int, shortcut: Make) -> nn.Module:
    """Return the shortcut around a block: the identity, unless the block changes the shape."""
    return shortcut(n_in, n_out, stride) if n_in != n_out or stride != 1 else nn.Identity()


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut around them; `ends_in_relu`: the sum is rectified."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        stride: int,
        shortcut: Make = Projection,
        ends_in_relu: bool = True,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.shortcut = _connect(n_in, n_out, stride, shortcut)
        self.ends_in_relu = ends_in_relu

    def forward(self, x: Tensor) -> Tensor:
        through = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        total: Tensor = through + self.shortcut(x)
        return F.relu(total) if self.ends_in_relu else total


class Bottleneck(nn.Module):
    """A 3×3 convolution between two 1×1 convolutions, with a shortcut around them."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        n_inside = n_out // 4
        self.conv1 = nn.Conv2d(n_in, n_inside, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(n_inside)
        self.conv2 = nn.Conv2d(n_inside, n_inside, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_inside)
        self.conv3 = nn.Conv2d(n_inside, n_out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(n_out)
        self.shortcut = _connect(n_in, n_out, stride, Projection)

    def forward(self, x: Tensor) -> Tensor:
        through = F.relu(self.norm1(self.conv1(x)))
        through = F.relu(self.norm2(self.conv2(through)))
        return F.relu(self.norm3(self.conv3(through)) + self.shortcut(x))


class PreactivationBlock(nn.Module):
    """Normalisation and ReLU before each of two 3×3 convolutions; a shortcut from the raw input."""

    def __init__(
        self, n_in: int, n_out: int, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.norm1 = norm(n_in)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.norm2 = norm(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.shortcut = _connect(n_in, n_out, stride, PaddedPool)

    def forward(self, x: Tensor) -> Tensor:
        through = self.conv1(F.relu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(F.relu(self.norm2(through)))  # type: ignore[no-any-return]


class ResNet(ImageModel):
    """A 3×3 stem without pooling, stages of blocks, and a head on the mean of each channel.

    With the four stages made for ImageNet, this is the network of TTT++
    (https://github.com/vita-epfl/ttt-plus-plus).

    Args:
        n_classes: number of logits.
        mean: mean of each input channel.
        std: standard deviation of each input channel.
        block: makes a block; each stage but the first halves the height and width.
        n_blocks: blocks in each stage.
        widths: channels of the stem, and of each stage.
        norm: the normalisation outside of blocks; that of the stem by default.
        n_features: inputs of the head; the channels of the last stage by default.
    """

    def __init__(
        self,
        n_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        block: Make,
        n_blocks: Sequence[int],
        widths: Sequence[int],
        norm: nn.Module | None = None,
        n_features: int | None = None,
    ) -> None:
        super().__init__(mean, std)
        self.stem = nn.Conv2d(len(mean), widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0]) if norm is None else norm
        self._stages = [f"stage{number}" for number, _ in enumerate(n_blocks, 1)]
        for name, n, (n_in, n_out) in zip(self._stages, n_blocks, pairwise(widths), strict=True):
            stage = make_stage(n, n_in, n_out, 1 if name == "stage1" else 2, block)
            self.add_module(name, stage)
        self.head = nn.Linear(n_features or widths[-1], n_classes)

    @property
    def stages(self) -> list[nn.Module]:
        """The stages in order; each is also an attribute, `stage1` and so on."""
        return [self.get_submodule(name) for name in self._stages]

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(self.normalize(x))))
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


class CifarResNet(ResNet):
    """ResNet-`depth` for CIFAR as in the paper: 16, 32, 64 channels and option-A shortcuts.

    The depth is that of each of the three forms for CIFAR, 6·k + 2 with k blocks in each stage.
    """

    def __init__(
        self, depth: int, n_classes: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        block, n_blocks = partial(BasicBlock, shortcut=PaddedSubsample), count_blocks(depth, 2)
        super().__init__(n_classes, mean, std, block, [n_blocks] * 3, (16, 16, 32, 64))


class WideStemResNet(ResNet):
    """A ResNet-`depth` for CIFAR with a stem of 64 channels and a ReLU after stages, not blocks.

    The form of the CIFAR-100 weights of https://github.com/karanchahal/distiller. The last map is
    pooled by 4, so that images of 32×32 have 4 · 64 features.
    """

    def __init__(
        self, depth: int, n_classes: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        block, n_blocks = partial(BasicBlock, ends_in_relu=False), [count_blocks(depth, 2)] * 3
        widths = (64, 16, 32, 64)
        super().__init__(n_classes, mean, std, block, n_blocks, widths, n_features=4 * 64)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(self.normalize(x))))
        for stage in self.stages:
            x = F.relu(stage(x))
        return self.head(F.avg_pool2d(x, 4).flatten(1))  # type: ignore[no-any-return]


class PreactivationResNet(ResNet):
    """ResNet-`depth` for CIFAR with pre-activation and shortcuts without parameters.

    The ResNet-26 of TTT (https://github.com/yueatsprograms/ttt_cifar_release) and, with group
    normalisation, of MEMO (https://github.com/zhangmarvin/memo). `n_groups` 0 means batch
    normalisation.
    """

    def __init__(
        self,
        depth: int,
        n_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        n_groups: int = 0,
    ) -> None:
        make_norm: Any = partial(nn.GroupNorm, n_groups) if n_groups else nn.BatchNorm2d
        block, n_blocks = partial(PreactivationBlock, norm=make_norm), count_blocks(depth, 2)
        widths = (16, 16, 32, 64)
        super().__init__(n_classes, mean, std, block, [n_blocks] * 3, widths, make_norm(64))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(self.normalize(x))
        for stage in self.stages:
            x = stage(x)
        return self.head(F.relu(self.norm(x)).mean(dim=(2, 3)))  # type: ignore[no-any-return]


class ShortResNet(ImageModel):
    """ResNet-9: two residual blocks between plain convolutions, made to be trained in minutes.

    The layout of D. Page's entry to DAWNBench (https://github.com/davidcpage/cifar10-fast), narrow
    enough that the weights fit into 1.5 MB, and with the mean of each channel as features.
    """

    def __init__(
        self,
        n_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__(mean, std)
        first, second, third, fourth = 16, 32, 64, 112
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
