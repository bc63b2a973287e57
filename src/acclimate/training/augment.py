"""The standard augmentation of small images: a shift and a flip, drawn for each image."""

from __future__ import annotations

import torch
from torch import Tensor


def shift_and_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return images shifted by up to an eighth of their size and, half of them, flipped.

    Borders are mirrored. Of 32×32 images that is the usual crop of an image padded by 4. Colour
    becomes the last axis in memory, the layout convolutions are fastest in.

    Args:
        x: Images of any dtype, (batch, channels, height, width).
        generator: On the CPU.
    """
    n, _, height, width = x.shape
    rows = _places(n, height, generator)
    columns = _places(n, width, generator)
    flipped = torch.rand(n, generator=generator) < 0.5
    columns = torch.where(flipped[:, None], columns.flip(1), columns)
    picks = torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]
    image, row, column = (pick.to(x.device) for pick in picks)
    return x[image, :, row, column].permute(0, 3, 1, 2)


def _places(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Return where each pixel of a side is taken from, (n, size)."""
    farthest = min(size // 8, size - 1)
    shifts = torch.randint(-farthest, farthest + 1, (n, 1), generator=generator)
    places = (shifts + torch.arange(size)).abs()
    return torch.where(places < size, places, 2 * (size - 1) - places)
