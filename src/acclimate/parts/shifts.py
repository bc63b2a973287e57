"""Shifts of source images by which accuracy estimates are calibrated: corruptions and alterations.

Corruptions are those of `acclimate.corruptions`; the fifteen of the usual benchmark are not used.
Alterations are simpler: they turn, colour, sharpen or hide a part of an image, or take away
shades. A shift is a name, or several joined by `+`, all of which every image gets. Names joined by
`/` are a mixture: every image gets one of them in turn. `clean` stands for the image as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from acclimate import corruptions

CLEAN = "clean"
_HIGHEST = 5  # severity


def _rotate(x: Tensor, share: float) -> Tensor:
    """Turn every second image to the left and the others to the right, by up to 35 degrees."""
    angle = torch.full((len(x),), share * 35 * torch.pi / 180)
    angle[1::2] *= -1
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros(len(x))
    rows = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
    grid: Tensor = F.affine_grid(rows, list(x.shape), align_corners=False)
    turned: Tensor = F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)
    return turned


def _posterize(x: Tensor, share: float) -> Tensor:
    steps = float(2 ** round(5 - 3 * share) - 1)
    return (x * steps).round() / steps


def _solarize(x: Tensor, share: float) -> Tensor:
    return torch.where(x > 1 - 0.55 * share, 1 - x, x)


def _occlude(x: Tensor, share: float) -> Tensor:
    """Hide a square of about a quarter of the image, in one place after the other."""
    x = x.clone()
    height, width = x.shape[2:]
    size = max(1, round(0.53 * share * min(height, width)))
    for number, image in enumerate(x):
        top = number * 7 % (height - size + 1)
        left = number * 11 % (width - size + 1)
        image[:, top : top + size, left : left + size] = 0.5
    return x


def _tint(x: Tensor, share: float) -> Tensor:
    return x * (1 + share * torch.tensor([0.5, -0.3, -0.6]).view(1, 3, 1, 1))


def _sharpen(x: Tensor, share: float) -> Tensor:
    mean = F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)
    return x + 5 * share * (x - mean)


_ALTERATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": _solarize,
    "occlude": _occlude,
    "tint": _tint,
    "sharpen": _sharpen,
}
ALTERATIONS = tuple(_ALTERATIONS)


def shift_images(images: NDArray[np.uint8], name: str, severity: int) -> NDArray[np.uint8]:
    """Return shifted images, 8-bit (n, height, width, 3)."""
    if len(mixture := name.split("/")) > 1:
        mixed = images.copy()
        for number, each in enumerate(mixture[: len(images)]):
            own = np.ascontiguousarray(images[number :: len(mixture)])
            mixed[number :: len(mixture)] = shift_images(own, each, severity)
        return mixed
    for each in name.split("+"):
        if each == CLEAN:
            continue
        if each not in _ALTERATIONS:
            images = corruptions.apply(images, each, severity, scale=True)
            continue
        x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
        x = _ALTERATIONS[each](x, severity / _HIGHEST).clamp(0, 1)
        images = (255 * x).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
    return images
