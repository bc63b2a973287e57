"""Affine maps of image batches, sampled bilinearly, and the small blur that follows one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BLUR_REACH = 2  # pixels on either side that the blur looks at: a kernel of five


def warp(x: Tensor, maps: Tensor, padding: str, margin: int = 0) -> Tensor:
    """Return images whose pixels are taken from elsewhere in the image, between pixels bilinearly.

    The pixel at (column, row) is taken from `a·column + b·row + c` (its column) and
    `d·column + e·row + f` (its row), in pixels from the centre of the image.

    Args:
        x: Images, (batch, channels, height, width).
        maps: `[[a, b, c], [d, e, f]]` for each image, (batch, 2, 3), or for all, (1, 2, 3).
        padding: What lies outside: `"border"` repeats the edge, `"reflection"` mirrors at the
            outermost pixels without repeating them, `"zeros"` is black.
        margin: Pixels by which the result is larger on every side.
    """
    height, width = x.shape[-2:]
    # In units in which the centres of the outermost pixels lie at -1 and 1, so that reflection
    # does not repeat them.
    half = maps.new_tensor([max(width - 1, 1) / 2, max(height - 1, 1) / 2])
    scaled = (maps / half[:, None]).to(x)
    columns = _from_centre(width, margin, x)
    rows = _from_centre(height, margin, x)[:, None]
    places = [
        part[:, 0, None, None] * columns + part[:, 1, None, None] * rows + part[:, 2, None, None]
        for part in scaled.unbind(1)
    ]
    grid = torch.stack(places, dim=-1).expand(len(x), -1, -1, -1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=True)


def turn_and_scale(angles: Tensor, scales: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    """Return the maps of images that are turned, enlarged, then moved, (batch, 2, 3).

    Args:
        angles: In radians, (batch,).
        scales: How much larger things appear, (batch,).
        columns: Pixels by which things move to the right, (batch,).
        rows: Pixels by which they move down, (batch,).
    """
    # A map says where a pixel comes from, hence it is the inverse of what is seen to happen.
    cosine, sine = angles.cos() / scales, angles.sin() / scales
    from_column = torch.stack([cosine, sine, -(cosine * columns + sine * rows)], dim=1)
    from_row = torch.stack([-sine, cosine, sine * columns - cosine * rows], dim=1)
    return torch.stack([from_column, from_row], dim=1)


def blur_margin(x: Tensor, sigmas: Tensor) -> Tensor:
    """Return images under a Gaussian of 5 × 5 pixels, without the margin it looks at.

    Args:
        x: Images with a margin of `BLUR_REACH` pixels.
        sigmas: Standard deviation in pixels, of each image, (batch,), or of all, (1,).
    """
    offsets = torch.arange(-BLUR_REACH, BLUR_REACH + 1, dtype=sigmas.dtype)
    line = torch.softmax(-0.5 * (offsets / sigmas[:, None]) ** 2, dim=1).to(x)
    for axis in (2, 3):
        size = x.shape[axis] - 2 * BLUR_REACH
        total = torch.zeros_like(x.narrow(axis, 0, size))
        for step, weights in enumerate(line.unbind(1)):
            total.addcmul_(x.narrow(axis, step, size), weights[:, None, None, None])
        x = total
    return x


def _from_centre(size: int, margin: int, like: Tensor) -> Tensor:
    ends = (size - 1) / 2 + margin
    return torch.arange(size + 2 * margin, dtype=like.dtype, device=like.device) - ends
