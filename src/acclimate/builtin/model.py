"""Wide residual network for small images, and the reader of packaged weights.

Zagoruyko & Komodakis, "Wide Residual Networks", BMVC 2016, https://arxiv.org/abs/1605.07146:
the pre-activation form, batch normalisation and ReLU before each convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import as_file
from importlib.resources.abc import Traversable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn

from acclimate.errors import AcclimateError, CorruptFile, UnsuitableModel, refuse_value

_UNUSABLE = (SafetensorError, RuntimeError, FileNotFoundError, AcclimateError)


class ImageModel(nn.Module):
    """Takes images in [0, 1] and normalises them by the mean and standard deviation of channels."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(tuple(mean)).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(tuple(std)).view(1, -1, 1, 1))

    def normalize(self, x: Tensor) -> Tensor:
        """Return (x − mean) / std by channel."""
        return (x - self.mean) / self.std


class Block(nn.Module):
    """Two 3×3 convolutions with a shortcut around them."""

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
        activated = F.relu(self.norm1(x))
        # Where the shape changes the shortcut starts after the activation, as in the paper's code.
        around = x if self.shortcut is None else self.shortcut(activated)
        through = self.conv1(activated)
        through = self.conv2(self.dropout(F.relu(self.norm2(through))))
        return around + through  # type: ignore[no-any-return]


class WideResNet(ImageModel):
    """WRN-`depth`-`width` for images in [0, 1].

    Args:
        depth: number of layers; must be 6·k + 4, with k blocks in each of the three stages.
        width: factor by which each stage is wider than 16, 32 and 64 channels.
        n_classes: number of logits.
        dropout: probability of dropping a value inside a block.
        mean: mean of each input channel.
        std: standard deviation of each input channel.
    """

    def __init__(
        self,
        depth: int,
        width: int,
        n_classes: int,
        dropout: float = 0.0,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.25, 0.25, 0.25),
    ) -> None:
        super().__init__(mean, std)
        n_blocks = count_blocks(depth, 4)
        widths = [16 * width, 32 * width, 64 * width]
        block = partial(Block, dropout=dropout)
        self.stem = nn.Conv2d(len(mean), 16, 3, padding=1, bias=False)
        self.stage1 = make_stage(n_blocks, 16, widths[0], 1, block)
        self.stage2 = make_stage(n_blocks, widths[0], widths[1], 2, block)
        self.stage3 = make_stage(n_blocks, widths[1], widths[2], 2, block)
        self.norm = nn.BatchNorm2d(widths[2])
        self.head = nn.Linear(widths[2], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage3(self.stage2(self.stage1(self.stem(self.normalize(x)))))
        features = F.relu(self.norm(x)).mean(dim=(2, 3))
        return self.head(features)  # type: ignore[no-any-return]

    def initialise(self, generator: torch.Generator) -> None:
        """Draw fresh weights: He's normal for convolutions, zero biases."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", generator=generator)
        nn.init.kaiming_normal_(self.head.weight, mode="fan_in", generator=generator)
        nn.init.zeros_(self.head.bias)


def count_blocks(depth: int, n_others: int) -> int:
    """Return the number of blocks in each of three stages of a residual network for CIFAR."""
    if depth < 6 + n_others or (depth - n_others) % 6:
        expected = f"{6 + n_others}, {12 + n_others}, … (6·k + {n_others})"
        refuse_value("depth", depth, expected, UnsuitableModel)
    return (depth - n_others) // 6


def make_stage(
    n_blocks: int, n_in: int, n_out: int, stride: int, block: Callable[[int, int, int], nn.Module]
) -> nn.Sequential:
    """Return blocks, of which the first changes the number of channels and takes the stride."""
    first = block(n_in, n_out, stride)
    return nn.Sequential(first, *(block(n_out, n_out, 1) for _ in range(n_blocks - 1)))


@contextmanager
def open_weights(file: Traversable) -> Iterator[Path]:
    """Give the path of a file; refuse one that is missing, damaged, or of another model."""
    with as_file(file) as path:
        try:
            yield path
        except _UNUSABLE as error:
            message = (
                f"The weights of the built-in model at {path} cannot be loaded: {error}. Install "
                "acclimate again."
            )
            if not path.is_file():
                raise CorruptFile("file_missing", message, path=path) from error
            if isinstance(error, CorruptFile):
                raise CorruptFile(error.code, message, **error.data) from error
            if isinstance(error, SafetensorError):
                raise CorruptFile("unreadable_file", message, path=path) from error
            raise CorruptFile("wrong_content", message, path=path) from error
