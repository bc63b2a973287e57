"""Random crops of images together with their labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.data.mask_files import IGNORE
from acclimate.streams.images import Size


def crop_and_flip(
    x: Tensor,
    y: Tensor,
    size: Size,
    scales: tuple[float, float],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return a random part of each image, at a random scale, half of them mirrored.

    What lies outside of an image is black, and ignored.

    Args:
        x: Images in [0, 1], (n, 3, height, width).
        y: Class numbers, (n, height, width).
        size: Height and width of what is returned.
        scales: Smallest and largest enlargement.
        generator: On the CPU.
    """
    n, _, height, width = x.shape
    draws = torch.rand(n, 4, generator=generator)
    scale = scales[0] + draws[:, 0] * (scales[1] - scales[0])
    # Both axes run from −1 to 1: how far the part reaches, and by how much it may be off centre.
    reach = torch.stack([size[1] / (width * scale), size[0] / (height * scale)], dim=1)
    offset = (2 * draws[:, 1:3] - 1) * (1 - reach).abs()
    mirrored = torch.where(draws[:, 3] < 0.5, -1.0, 1.0)
    maps = torch.zeros(n, 2, 3)
    maps[:, 0, 0], maps[:, 0, 2] = reach[:, 0] * mirrored, offset[:, 0]
    maps[:, 1, 1], maps[:, 1, 2] = reach[:, 1], offset[:, 1]
    grid = F.affine_grid(maps.to(x.device), [n, 3, *size], align_corners=False)
    images = F.grid_sample(x, grid, align_corners=False)
    # One more than the label, for outside is zero.
    shifted = F.grid_sample(y[:, None].float() + 1, grid, "nearest", align_corners=False)
    labels = shifted[:, 0].round().long() - 1
    return images, labels.masked_fill(labels < 0, IGNORE)
