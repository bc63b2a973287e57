"""The blocks of residual networks, and the shortcuts around them."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn


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
        """Return the pooled channels, then channels of zeros."""
        return F.pad(F.avg_pool2d(x, self.stride), (0, 0, 0, 0, 0, self.n_after))


class Projection(nn.Module):
    """Shortcut with parameters, option B of the paper: a 1×1 convolution and its normalisation."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
        self.norm = nn.BatchNorm2d(n_out)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projected input."""
        return self.norm(self.conv(x))  # type: ignore[no-any-return]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut around them.

    Args:
        n_in: input channels.
        n_out: output channels.
        stride: step of the first convolution.
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
        """Return the sum of both paths."""
        through = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        total: Tensor = through + self.shortcut(x)
        return F.relu(total) if self.ends_in_relu else total


class Bottleneck(nn.Module):
    """A 3×3 convolution between two 1×1 convolutions, with a shortcut around them.

    Args:
        n_in: input channels.
        n_out: output channels, four times those inside.
        stride: step of the 3×3 convolution.
    """

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
        """Return the rectified sum of both paths."""
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
        """Return the sum of both paths."""
        through = self.conv1(F.relu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(F.relu(self.norm2(through)))  # type: ignore[no-any-return]
