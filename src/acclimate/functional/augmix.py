"""AugMix-style copies of images in [0, 1], as in MEMO.

AugMix is Hendrycks et al. 2020, https://arxiv.org/abs/1912.02781. Each copy is shifted (or cropped)
and flipped, then mixed with three chains of simple operations. All random decisions use uniform
random numbers, one row per copy, which suffices for the published Dirichlet and Beta parameters
of 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.errors import InvalidConfig
from acclimate.functional.image_ops import CROP_TRIES, crop_boxes, resized_crop, warp
from acclimate.functional.views import change_, draw_uniforms

N_CHAINS = 3
MOST_OPERATIONS = 3  # per chain
LEAST_LEVEL = 0.1
HIGHEST = 255  # of 8-bit values

# Operations by number: the first four change tones, the others positions.
AUTOCONTRAST, EQUALIZE, POSTERIZE, SOLARIZE, ROTATE, SHEAR_X, SHEAR_Y, SHIFT_X, SHIFT_Y = range(9)
N_OPERATIONS = 9

# The effect of each operation at level 10.
_MOST_BITS, _MOST_ANGLE, _MOST_SHEAR, _MOST_SHIFT = 4, 30, 0.3, 1 / 3
_GREY = 128 / HIGHEST

_CROP_AREA, _CROP_RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
_PLACES = {"shift": 2, "crop": 2 * CROP_TRIES + 2}  # random numbers per image
_N_STEPS = N_CHAINS * MOST_OPERATIONS


@dataclass(frozen=True)
class AugMix:
    """Shifts or crops, flips, and mixes with three chains of one to three operations.

    Attributes:
        severity: The highest level of an operation, up to 10; the lowest is 0.1.
        place: `"shift"` by up to an eighth of the image with black padding, as on CIFAR; or
            `"crop"` of 8 to 100 % of the area, as on ImageNet.
    """

    severity: float = 1.0
    place: str = "shift"

    def __post_init__(self) -> None:
        if not LEAST_LEVEL <= self.severity <= 10:
            raise InvalidConfig(
                "out_of_range",
                f"Expected a severity from {LEAST_LEVEL} to 10, found {self.severity!r}.",
                option="severity",
                found=self.severity,
            )
        if self.place not in _PLACES:
            raise InvalidConfig(
                "unknown_name",
                f'Expected place to be "shift" or "crop", found {self.place!r}.',
                kind="place",
                name=self.place,
                known=tuple(_PLACES),
            )

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return one copy of each image; `x` is unchanged.

        Args:
            x: Contiguous float32 or float64 images in [0, 1], (batch, channels, height, width).
            generator: A generator on the CPU.
        """
        sizes = [_PLACES[self.place], 1, 1, N_CHAINS, N_CHAINS, _N_STEPS, _N_STEPS, _N_STEPS]
        draws = draw_uniforms(len(x), sum(sizes), generator).split_with_sizes(sizes, dim=1)
        place, mirror, part, weights, depths, operations, levels, signs = draws
        if self.place == "crop":
            boxes = crop_boxes(place, x.shape[2], x.shape[3], _CROP_AREA, _CROP_RATIO)
            first = resized_crop(x, boxes)
        else:
            first = _shift(x, place)
        first = change_(first, mirror[:, 0] < 0.5, lambda chosen: chosen.flip(-1))

        signed = LEAST_LEVEL + levels * (self.severity - LEAST_LEVEL)
        signed = torch.where(signs < 0.5, -signed, signed)
        chains = apply_chains(
            first.repeat_interleave(N_CHAINS, dim=0),
            (depths * MOST_OPERATIONS).long().flatten() + 1,
            (operations * N_OPERATIONS).long().view(-1, MOST_OPERATIONS),
            signed.view(-1, MOST_OPERATIONS),
        )
        # Exponential variates divided by their sum have the Dirichlet distribution of parameters 1.
        shares = -torch.log1p(-weights)
        shares = (shares / shares.sum(dim=1, keepdim=True)).to(x)[:, :, None, None, None]
        mixed = (chains.view(len(x), N_CHAINS, *x.shape[1:]) * shares).sum(dim=1)
        return torch.lerp(mixed, first, part.to(x)[:, :, None, None]).clamp_(0, 1)


@torch.no_grad()
def apply_chains(x: Tensor, depths: Tensor, operations: Tensor, levels: Tensor) -> Tensor:
    """Return the images, each after the first `depth` operations of its chain.

    Args:
        x: Images in [0, 1], (batch, channels, height, width).
        depths: Number of operations of each image, (batch,); on the CPU, like the others.
        operations: Operations by number, (batch, steps).
        levels: Levels from -10 to 10, (batch, steps); the sign is the direction, if any.
    """
    out = x.clone()
    for step in range(operations.shape[1]):
        kinds = torch.where(depths > step, operations[:, step], -1)
        own = levels[:, step]
        for number, tone in enumerate(_TONES):
            chosen = kinds == number
            if bool(chosen.any()):
                index = chosen.nonzero().squeeze(1).to(x.device)
                out.index_copy_(0, index, tone(out.index_select(0, index), own[chosen]))
        moved = kinds >= ROTATE
        if bool(moved.any()):
            index = moved.nonzero().squeeze(1).to(x.device)
            maps = _maps(kinds[moved], own[moved], x.shape[2], x.shape[3])
            # The padding is zero; subtracting grey first makes it grey.
            part = warp(out.index_select(0, index).sub_(_GREY), maps, "zeros").add_(_GREY)
            out.index_copy_(0, index, part)
    return out


def autocontrast(x: Tensor, levels: Tensor) -> Tensor:
    """Return each channel stretched to the full range; the level is ignored."""
    low, high = x.amin(dim=(2, 3), keepdim=True), x.amax(dim=(2, 3), keepdim=True)
    spread = high - low
    stretched = (x - low) / spread.clamp_min(torch.finfo(x.dtype).tiny)
    return torch.where(spread > 0, stretched, x)


def equalize(x: Tensor, levels: Tensor) -> Tensor:
    """Return each channel with its histogram of 8-bit values equalised; the level is ignored."""
    values = _to_bytes(x).flatten(2)
    counts = values.new_zeros(*values.shape[:2], HIGHEST + 1)
    counts.scatter_add_(2, values, torch.ones_like(values))
    # The pixels of the highest value always map to the top.
    n_others = values.shape[2] - counts.gather(2, values.amax(dim=2, keepdim=True))
    unit = n_others // HIGHEST
    below = counts.cumsum(dim=2) - counts
    table = ((below + unit // 2) // unit.clamp_min(1)).clamp_max(HIGHEST)
    spread = table.gather(2, values)
    return torch.where(unit > 0, spread, values).view(x.shape).to(x.dtype).div_(HIGHEST)


def posterize(x: Tensor, levels: Tensor) -> Tensor:
    """Return 8-bit values reduced to four bits, or fewer at higher levels."""
    n_dropped = 8 - _MOST_BITS + (levels.abs() * _MOST_BITS / 10).long()
    units = (2**n_dropped).to(x.device)[:, None, None, None]
    return (_to_bytes(x) // units * units).to(x.dtype).div_(HIGHEST)


def solarize(x: Tensor, levels: Tensor) -> Tensor:
    """Return 8-bit values with the highest inverted, more of them at higher levels."""
    n_inverted = (levels.abs() * (HIGHEST + 1) / 10).long().to(x.device)[:, None, None, None]
    values = _to_bytes(x)
    kept = values < HIGHEST + 1 - n_inverted
    return torch.where(kept, values, HIGHEST - values).to(x.dtype).div_(HIGHEST)


_TONES = (autocontrast, equalize, posterize, solarize)


def _maps(kinds: Tensor, levels: Tensor, height: int, width: int) -> Tensor:
    """Return the maps of images that are rotated, sheared or shifted; see `warp`."""
    angles = torch.where(kinds == ROTATE, (levels * _MOST_ANGLE / 10).trunc(), 0.0).deg2rad()
    shears = levels * _MOST_SHEAR / 10
    shear_x, shear_y = (torch.where(kinds == kind, shears, 0.0) for kind in (SHEAR_X, SHEAR_Y))
    shift_x, shift_y = (
        torch.where(kinds == kind, (levels * size * _MOST_SHIFT / 10).trunc(), 0.0)
        for kind, size in ((SHIFT_X, width), (SHIFT_Y, height))
    )
    cosine, sine = angles.cos(), angles.sin()
    # Shears keep the top and the left edge fixed.
    from_column = [cosine, shear_x - sine, shift_x + shear_x * (height / 2)]
    from_row = [shear_y + sine, cosine, shift_y + shear_y * (width / 2)]
    return torch.stack([torch.stack(from_column, dim=1), torch.stack(from_row, dim=1)], dim=1)


def _to_bytes(x: Tensor) -> Tensor:
    return (x * HIGHEST).round().long()


def _shift(x: Tensor, uniforms: Tensor) -> Tensor:
    """Return the images shifted by whole pixels, up to an eighth of their size, padded black."""
    _, _, height, width = x.shape
    reach = (height // 8, width // 8)
    padded = F.pad(x, (reach[1], reach[1], reach[0], reach[0]))
    starts = (uniforms * uniforms.new_tensor([2 * reach[0] + 1, 2 * reach[1] + 1])).floor().long()
    rows = (starts[:, :1] + torch.arange(height)).to(x.device)
    columns = (starts[:, 1:] + torch.arange(width)).to(x.device)
    samples = torch.arange(len(x), device=x.device)[:, None, None]
    moved = padded.permute(0, 2, 3, 1)[samples, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2).contiguous()
