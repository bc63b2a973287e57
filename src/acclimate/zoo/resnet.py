"""Residual networks for 32×32 images: the forms whose weights, or results, are published.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, and "Identity Mappings in Deep
Residual Networks", ECCV 2016. All take images in [0, 1] and normalise them themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.builtin.model import ImageModel, count_blocks, make_stage


class PaddedSubsample(nn.Module):
    """Shortcut without parameters, option A of the paper: every second pixel, zeros around."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.n_before = (n_out - n_in) // 2
        self.n_after = n_out - n_in - self.n_before

    def forward(self, x: Tensor) -> Tensor:
        """Return half the height and width, with channels of zeros before and after."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.n_before, self.n_after))


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


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut around them.

    Args:
        projects: whether a shortcut that changes the shape has parameters.
        ends_in_relu: whether the sum is rectified.
    """

    def __init__(
        self, n_in: int, n_out: int, stride: int, projects: bool = True, ends_in_relu: bool = True
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.shortcut: nn.Module = nn.Identity()
        if n_in != n_out or stride != 1:
            self.shortcut = (
                Projection(n_in, n_out, stride) if projects else PaddedSubsample(n_in, n_out)
            )
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
        changes_shape = n_in != n_out or stride != 1
        self.shortcut = Projection(n_in, n_out, stride) if changes_shape else nn.Identity()

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
        changes_shape = n_in != n_out or stride != 1
        self.shortcut = PaddedPool(n_in, n_out, stride) if changes_shape else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        through = self.conv1(F.relu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(F.relu(self.norm2(through)))  # type: ignore[no-any-return]


class CifarNet(ImageModel):
    """Stem, three stages of 16, 32 and 64 channels, and head: what residual nets for CIFAR share.

    Args:
        depth: number of layers, 6·k + 2 with k blocks in each stage.
        n_classes: number of logits.
        mean: mean of each input channel.
        std: standard deviation of each input channel.
    """

    def __init__(
        self,
        depth: int,
        n_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        n_stem: int,
        block: Callable[[int, int, int], nn.Module],
        norm: Callable[[], nn.Module],
        n_features: int = 64,
    ) -> None:
        super().__init__(mean, std)
        n_blocks = count_blocks(depth, 2)
        self.stem = nn.Conv2d(len(mean), n_stem, 3, padding=1, bias=False)
        self.norm = norm()
        self.stage1 = make_stage(n_blocks, n_stem, 16, 1, block)
        self.stage2 = make_stage(n_blocks, 16, 32, 2, block)
        self.stage3 = make_stage(n_blocks, 32, 64, 2, block)
        self.head = nn.Linear(n_features, n_classes)


class CifarResNet(CifarNet):
    """ResNet-`depth` for CIFAR as in the paper: 16, 32, 64 channels and option-A shortcuts."""

    def __init__(
        self, depth: int, n_classes: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        block = partial(BasicBlock, projects=False)
        super().__init__(depth, n_classes, mean, std, 16, block, partial(nn.BatchNorm2d, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(self.normalize(x))))
        features = self.stage3(self.stage2(self.stage1(x))).mean(dim=(2, 3))
        return self.head(features)  # type: ignore[no-any-return]


class WideStemResNet(CifarNet):
    """A ResNet-`depth` for CIFAR with a stem of 64 channels and a ReLU after stages, not blocks.

    The form of the CIFAR-100 weights of https://github.com/karanchahal/distiller. The last map is
    pooled by 4, so that images of 32×32 have 4 · 64 features.
    """

    def __init__(
        self, depth: int, n_classes: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        block = partial(BasicBlock, ends_in_relu=False)
        norm = partial(nn.BatchNorm2d, 64)
        super().__init__(depth, n_classes, mean, std, 64, block, norm, n_features=4 * 64)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(self.normalize(x))))
        for stage in (self.stage1, self.stage2, self.stage3):
            x = F.relu(stage(x))
        return self.head(F.avg_pool2d(x, 4).flatten(1))  # type: ignore[no-any-return]


class PreactivationResNet(CifarNet):
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
        norm: Callable[[int], nn.Module]
        norm = partial(nn.GroupNorm, n_groups) if n_groups else nn.BatchNorm2d
        block = partial(PreactivationBlock, norm=norm)
        super().__init__(depth, n_classes, mean, std, 16, block, partial(norm, 64))

    def forward(self, x: Tensor) -> Tensor:
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
        n = 64 * (4 if bottleneck else 1)
        self.stem = nn.Conv2d(len(mean), 64, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.stage1 = make_stage(n_blocks[0], 64, n, 1, block)
        self.stage2 = make_stage(n_blocks[1], n, 2 * n, 2, block)
        self.stage3 = make_stage(n_blocks[2], 2 * n, 4 * n, 2, block)
        self.stage4 = make_stage(n_blocks[3], 4 * n, 8 * n, 2, block)
        self.head = nn.Linear(8 * n, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(self.normalize(x))))
        x = self.stage4(self.stage3(self.stage2(self.stage1(x))))
        return self.head(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


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
