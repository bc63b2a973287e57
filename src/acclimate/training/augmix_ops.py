"""The nine operations AugMix chains, on batches in which every image has its own strength.

All take and return uint8 images (batch, channels, height, width), as Pillow's operations of the
same names do. None of them resembles a corruption that robustness is measured with. Strengths are
levels from 0 to 10; where an operation has a direction, the sign of the level gives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_N_VALUES = 256
_MOST_BITS, _MOST_DEGREES, _MOST_SHEAR, _MOST_SHIFT = 4, 30, 0.3, 1 / 3  # at level 10


def autocontrast(x: Tensor, levels: Tensor) -> Tensor:
    """Return each channel stretched to the whole range; the level has no meaning."""
    values = x.int()
    low, high = values.amin(dim=(2, 3), keepdim=True), values.amax(dim=(2, 3), keepdim=True)
    spread = (high - low).clamp(min=1)
    stretched = (values - low) * 255 // spread
    return torch.where(high > low, stretched, values).to(torch.uint8)


def equalize(x: Tensor, levels: Tensor) -> Tensor:
    """Return each channel with its values spread to be equally frequent; no level."""
    n, channels, height, width = x.shape
    flat = x.reshape(n * channels, height * width).long()
    offsets = torch.arange(n * channels, device=x.device)[:, None] * _N_VALUES
    counts = torch.bincount((flat + offsets).flatten(), minlength=n * channels * _N_VALUES)
    counts = counts.view(n * channels, _N_VALUES)
    # Pixels of the brightest value do not count: they end at 255 anyway.
    brightest = counts.gather(1, flat.amax(dim=1, keepdim=True))
    step = (height * width - brightest) // 255
    below = counts.cumsum(dim=1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    spread = table.gather(1, flat)
    return torch.where(step > 0, spread, flat).to(torch.uint8).view_as(x)


def posterize(x: Tensor, levels: Tensor) -> Tensor:
    """Return the images with fewer bits a value: four, or less at higher levels."""
    n_dropped = 8 - _MOST_BITS + (levels.abs() * _MOST_BITS / 10).int()
    unit = torch.pow(2, n_dropped).to(x.device, torch.int32)[:, None, None, None]
    return (x.int() // unit * unit).to(torch.uint8)


def solarize(x: Tensor, levels: Tensor) -> Tensor:
    """Return the images with the brightest values inverted, more of them at higher levels."""
    threshold = (_N_VALUES - (levels.abs() * _N_VALUES / 10).int()).to(x.device)
    values = x.int()
    kept = values < threshold[:, None, None, None]
    return torch.where(kept, values, 255 - values).to(torch.uint8)


def rotate(x: Tensor, levels: Tensor) -> Tensor:
    """Return the images turned around their centre by whole degrees, black outside."""
    angles = _whole(levels * _MOST_DEGREES / 10) * (math.pi / 180)
    cosine, sine = angles.cos(), angles.sin()
    half_height, half_width = x.shape[2] / 2, x.shape[3] / 2
    return _sample(
        x,
        (cosine, -sine, half_width - cosine * half_width + sine * half_height),
        (sine, cosine, half_height - sine * half_width - cosine * half_height),
    )


def shear_x(x: Tensor, levels: Tensor) -> Tensor:
    """Return the images with rows moved in proportion to their distance from the top."""
    one, zero = torch.ones_like(levels), torch.zeros_like(levels)
    return _sample(x, (one, levels * _MOST_SHEAR / 10, zero), (zero, one, zero))


def shear_y(x: Tensor, levels: Tensor) -> Tensor:
    """Return the images with columns moved in proportion to their distance from the left."""
    one, zero = torch.ones_like(levels), torch.zeros_like(levels)
    return _sample(x, (one, zero, zero), (levels * _MOST_SHEAR / 10, one, zero))


def translate_x(x: Tensor, levels: Tensor) -> Tensor:
    """Return the images moved sideways by whole pixels."""
    one, zero = torch.ones_like(levels), torch.zeros_like(levels)
    shift = _whole(levels * x.shape[3] * _MOST_SHIFT / 10)
    return _sample(x, (one, zero, shift), (zero, one, zero))


def translate_y(x: Tensor, levels: Tensor) -> Tensor:
    """Return the images moved up or down by whole pixels."""
    one, zero = torch.ones_like(levels), torch.zeros_like(levels)
    shift = _whole(levels * x.shape[2] * _MOST_SHIFT / 10)
    return _sample(x, (one, zero, zero), (zero, one, shift))


OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    autocontrast,
    equalize,
    posterize,
    rotate,
    solarize,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
)

_Row = tuple[Tensor, Tensor, Tensor]


def _whole(values: Tensor) -> Tensor:
    return values.trunc()


def _sample(x: Tensor, columns: _Row, rows: _Row) -> Tensor:
    """Return images whose pixels are taken from elsewhere, between pixels bilinearly.

    The pixel with its centre at (column, row) is taken from a·column + b·row + c, once for the
    column and once for the row; what lies outside is black.
    """
    _, _, height, width = x.shape
    column = torch.arange(width, dtype=torch.float32, device=x.device) + 0.5
    row = torch.arange(height, dtype=torch.float32, device=x.device)[:, None] + 0.5
    places = []
    for factors in (columns, rows):
        a, b, c = (factor.to(x.device, torch.float32)[:, None, None] for factor in factors)
        places.append(a * column + b * row + c)
    from_column, from_row = places
    inside = (from_column >= 0) & (from_column < width) & (from_row >= 0) & (from_row < height)
    grid = torch.stack([2 * from_column / width - 1, 2 * from_row / height - 1], dim=3)
    taken = F.grid_sample(x.float(), grid, padding_mode="border", align_corners=False)
    return (taken.round() * inside[:, None]).to(torch.uint8)
