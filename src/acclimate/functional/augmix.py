"""AugMix: images mixed with several chains of simple operations.

Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty",
ICLR 2020, https://arxiv.org/abs/1912.02781. None of the operations resembles a corruption that
robustness is measured with.

The same nine operations serve two uses that compute differently. `AugMix` makes the copies of MEMO:
float images in [0, 1], grey where an operation leaves the image. `mix` trains models: uint8 images,
with every operation rounded as in Pillow, black outside. Operations on tones are those of 8-bit
values in both uses; only `autocontrast` keeps all digits of floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.functional.image_ops import apply_in_order, map_places, take_pixels, warp
from acclimate.functional.rng import draw_uniforms
from acclimate.functional.views import Crop, Flip
from acclimate.options import Values, hp

LEAST_LEVEL = 0.1
HIGHEST = 255  # of 8-bit values

# The effect of each operation at level 10.
_MOST_BITS, _MOST_DEGREES, _MOST_SHEAR, _MOST_SHIFT = 4, 30, 0.3, 1 / 3
_GREY = 128 / HIGHEST

_Tone = Callable[[Tensor, Tensor], Tensor]


def _on_bytes(change: _Tone) -> _Tone:
    """Let an operation on uint8 images take images in [0, 1] as well, rounded to 8 bits."""

    @wraps(change)
    def changed(x: Tensor, levels: Tensor) -> Tensor:
        if x.dtype == torch.uint8:
            return change(x, levels)
        pixels = (x * HIGHEST).round().to(torch.uint8)
        return change(pixels, levels).to(x.dtype).div_(HIGHEST)

    return changed


def autocontrast(x: Tensor, levels: Tensor) -> Tensor:
    """Return each channel stretched to the full range; the level is ignored."""
    values = x.int() if x.dtype == torch.uint8 else x
    low, high = values.amin(dim=(2, 3), keepdim=True), values.amax(dim=(2, 3), keepdim=True)
    spread = high - low
    if x.dtype == torch.uint8:
        stretched = (values - low) * HIGHEST // spread.clamp_min(1)
    else:
        stretched = (values - low) / spread.clamp_min(torch.finfo(x.dtype).tiny)
    return torch.where(spread > 0, stretched, values).to(x.dtype)


@_on_bytes
def equalize(x: Tensor, levels: Tensor) -> Tensor:
    """Return each channel with its histogram equalised; the level is ignored."""
    n, channels, height, width = x.shape
    flat = x.reshape(n * channels, height * width).long()
    offsets = torch.arange(n * channels, device=x.device)[:, None] * (HIGHEST + 1)
    counts = torch.bincount((flat + offsets).flatten(), minlength=n * channels * (HIGHEST + 1))
    counts = counts.view(n * channels, HIGHEST + 1)
    # The pixels of the highest value always map to the top.
    n_highest = counts.gather(1, flat.amax(dim=1, keepdim=True))
    unit = (height * width - n_highest) // HIGHEST
    below = counts.cumsum(dim=1) - counts
    table = ((below + unit // 2) // unit.clamp_min(1)).clamp_max(HIGHEST)
    return torch.where(unit > 0, table.gather(1, flat), flat).to(torch.uint8).view_as(x)


@_on_bytes
def posterize(x: Tensor, levels: Tensor) -> Tensor:
    """Return values reduced to four bits, or fewer at higher levels."""
    n_dropped = 8 - _MOST_BITS + (levels.abs() * _MOST_BITS / 10).int()
    units = torch.pow(2, n_dropped).to(x.device, torch.int32)[:, None, None, None]
    return (x.int() // units * units).to(torch.uint8)


@_on_bytes
def solarize(x: Tensor, levels: Tensor) -> Tensor:
    """Return the highest values inverted, more of them at higher levels."""
    n_inverted = (levels.abs() * (HIGHEST + 1) / 10).int().to(x.device)[:, None, None, None]
    values = x.int()
    kept = values < HIGHEST + 1 - n_inverted
    return torch.where(kept, values, HIGHEST - values).to(torch.uint8)


_TONES = (autocontrast, equalize, posterize, solarize)

#: Names by number: operations on tones, then those that move pixels.
OPERATIONS = (
    *(tone.__name__ for tone in _TONES),
    *("rotate", "shear_x", "shear_y", "translate_x", "translate_y"),
)
_ROTATE, _SHEAR_X, _SHEAR_Y, _SHIFT_X, _SHIFT_Y = range(len(_TONES), len(OPERATIONS))


def _move(x: Tensor, kinds: Tensor, levels: Tensor) -> Tensor:
    """Return images that are rotated, sheared or shifted; shears keep the top and left edge."""
    height, width = x.shape[2:]
    angles = torch.where(kinds == _ROTATE, (levels * _MOST_DEGREES / 10).trunc(), 0.0).deg2rad()
    cosine, sine = angles.cos(), angles.sin()
    shears = levels * _MOST_SHEAR / 10
    shear_x, shear_y = (torch.where(kinds == kind, shears, 0.0) for kind in (_SHEAR_X, _SHEAR_Y))
    shift_x, shift_y = (
        torch.where(kinds == kind, (levels * size * _MOST_SHIFT / 10).trunc(), 0.0)
        for kind, size in ((_SHIFT_X, width), (_SHIFT_Y, height))
    )
    middle = width / 2, height / 2
    if x.dtype == torch.uint8:  # in pixels from the top left corner
        from_x = shift_x + (middle[0] - cosine * middle[0] + sine * middle[1])
        from_y = shift_y + (middle[1] - sine * middle[0] - cosine * middle[1])
    else:  # from the centre
        from_x, from_y = shift_x + shear_x * middle[1], shift_y + shear_y * middle[0]
    columns, rows = [cosine, shear_x - sine, from_x], [shear_y + sine, cosine, from_y]
    maps = torch.stack([torch.stack(columns, dim=1), torch.stack(rows, dim=1)], dim=1)
    if x.dtype == torch.uint8:
        return _warp_bytes(x, maps)
    # The padding is zero; subtracting grey first makes it grey.
    return warp(x.sub_(_GREY), maps, "zeros").add_(_GREY)


def _warp_bytes(x: Tensor, maps: Tensor) -> Tensor:
    """Return uint8 images resampled as Pillow does: bilinear up to the edge, black outside.

    Like `warp`, but positions are those of pixel centres in pixels from the top left corner.
    """
    height, width = x.shape[2:]
    column = torch.arange(width, dtype=torch.float32, device=x.device) + 0.5
    row = torch.arange(height, dtype=torch.float32, device=x.device)[:, None] + 0.5
    from_x, from_y = map_places(maps.to(x.device, torch.float32), column, row)
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    grid = torch.stack([2 * from_x / width - 1, 2 * from_y / height - 1], dim=3)
    taken = F.grid_sample(x.float(), grid, padding_mode="border", align_corners=False)
    return (taken.round() * inside[:, None]).to(torch.uint8)


@torch.no_grad()
def apply_chains(x: Tensor, depths: Tensor, operations: Tensor, levels: Tensor) -> Tensor:
    """Return the images, uint8 or in [0, 1], after the first `depth` operations of their chains.

    Operations by number and levels are (batch, steps), on the CPU like the depths (batch,). Levels
    are from -10 to 10; the sign is the direction, if any.
    """
    is_done = torch.arange(operations.shape[1]) >= depths[:, None]
    order = operations.clamp_max(_ROTATE).masked_fill(is_done, -1)

    def change(number: int, part: Tensor, rows: Tensor, step: int) -> Tensor:
        if number < _ROTATE:
            return _TONES[number](part, levels[rows, step])
        return _move(part, operations[rows, step], levels[rows, step])

    return apply_in_order(x, order, change)


@dataclass(frozen=True)
class Draws:
    """All that is random in the mixing of a batch, on the CPU."""

    depths: Tensor  # operations in each chain, (batch, width)
    operations: Tensor  # positions in `OPERATIONS`, (batch, width, depth)
    levels: Tensor  # with the sign of the direction, (batch, width, depth)
    weights: Tensor  # of the chains, (batch, width); they sum to 1
    parts: Tensor  # part of the chains in what `mix` returns, of the image for `AugMix`, (batch,)


def _mix_chains(x: Tensor, draws: Draws) -> Tensor:
    """Return the weighted sum of the chains of each image, as floats of the range of `x`."""
    n, width = draws.depths.shape
    chained = apply_chains(
        x.repeat_interleave(width, dim=0),
        draws.depths.flatten(),
        draws.operations.flatten(0, 1),
        draws.levels.flatten(0, 1),
    )
    weights = draws.weights.to(x.device, torch.promote_types(x.dtype, torch.float32))
    return (chained.view(n, width, *x.shape[1:]) * weights[:, :, None, None, None]).sum(dim=1)


# Copies of images in [0, 1], as MEMO makes them -------------------------------------------------

_N_CHAINS, _MOST_OPERATIONS = 3, 3
_CROP, _FLIP = Crop((0.08, 1.0)), Flip(0.5)
_PLACES = {"shift": 2, "crop": _CROP.n_uniforms}  # random numbers per image


@dataclass(frozen=True)
class AugMix(Values):
    """Shifts or crops, flips, and mixes with three chains of one to three operations.

    All random decisions use uniform random numbers, one row per copy, which suffices for the
    published Dirichlet and Beta parameters of 1.
    """

    severity: float = hp(1.0, low=LEAST_LEVEL, high=10, help="highest level of an operation")
    place: str = hp(
        "shift",
        choices=tuple(_PLACES),
        help="shift by up to an eighth with black padding (CIFAR), or crop 8 to 100 % (ImageNet)",
    )

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return one copy of each image in [0, 1]; `x` is unchanged."""
        n_steps = _N_CHAINS * _MOST_OPERATIONS
        sizes = [_PLACES[self.place], 1, 1, _N_CHAINS, _N_CHAINS, n_steps, n_steps, n_steps]
        uniforms = draw_uniforms(len(x), sum(sizes), generator).split_with_sizes(sizes, dim=1)
        place, mirror, part, shares, depths, *steps = uniforms
        operations, strengths, signs = (own.view(-1, _N_CHAINS, _MOST_OPERATIONS) for own in steps)
        levels = LEAST_LEVEL + strengths * (self.severity - LEAST_LEVEL)
        # Exponential variates divided by their sum have the Dirichlet distribution of parameters 1.
        weights = -torch.log1p(-shares)
        draws = Draws(
            depths=(depths * _MOST_OPERATIONS).long() + 1,
            operations=(operations * len(OPERATIONS)).long(),
            levels=torch.where(signs < 0.5, -levels, levels),
            weights=weights / weights.sum(dim=1, keepdim=True),
            parts=part[:, 0],
        )
        first = _CROP.apply(x, place) if self.place == "crop" else _shift(x, place)
        first = _FLIP.apply(first, mirror)
        mixed = _mix_chains(first, draws)
        return torch.lerp(mixed, first, part.to(x)[:, :, None, None]).clamp_(0, 1)


def _shift(x: Tensor, uniforms: Tensor) -> Tensor:
    """Return the images shifted by whole pixels, up to an eighth of their size, padded black."""
    _, _, height, width = x.shape
    reach = (height // 8, width // 8)
    padded = F.pad(x, (reach[1], reach[1], reach[0], reach[0]))
    starts = (uniforms * uniforms.new_tensor([2 * reach[0] + 1, 2 * reach[1] + 1])).floor().long()
    rows, columns = starts[:, :1] + torch.arange(height), starts[:, 1:] + torch.arange(width)
    return take_pixels(padded, rows, columns).contiguous()


# uint8 images, as models are trained with them --------------------------------------------------

# The order in which the operations are numbered in the draws that models were trained with.
_DRAWN = torch.tensor([0, 1, 2, _ROTATE, 3, _SHEAR_X, _SHEAR_Y, _SHIFT_X, _SHIFT_Y])


def shift_and_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return images shifted by up to an eighth of their size and, half of them, flipped.

    Borders are mirrored. Of 32×32 images that is the usual crop of an image padded by 4.
    """
    n, _, height, width = x.shape
    rows = _mirrored_places(n, height, generator)
    columns = _mirrored_places(n, width, generator)
    flipped = torch.rand(n, generator=generator) < 0.5
    return take_pixels(x, rows, torch.where(flipped[:, None], columns.flip(1), columns))


def _mirrored_places(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Return where each pixel of a side is taken from, (n, size)."""
    farthest = min(size // 8, size - 1)
    shifts = torch.randint(-farthest, farthest + 1, (n, 1), generator=generator)
    places = (shifts + torch.arange(size)).abs()
    return torch.where(places < size, places, 2 * (size - 1) - places)


@dataclass(frozen=True)
class AugMixOptions(Values):
    """How `mix` mixes; the defaults are the paper's."""

    severity: float = hp(3.0, above=LEAST_LEVEL, high=10, help="highest level of an operation")
    width: int = hp(3, low=1, help="number of chains (k)")
    depth: int = hp(3, low=1, help="largest number of operations of a chain")
    alpha: float = hp(1.0, above=0, help="of the Dirichlet and the Beta distribution (α)")


def draw(n: int, options: AugMixOptions, generator: torch.Generator) -> Draws:
    """Return the random draws for a batch of `n` images."""
    chains = (n, options.width)
    steps = (*chains, options.depth)
    depths = torch.randint(1, options.depth + 1, chains, generator=generator)
    operations = _DRAWN[torch.randint(0, len(OPERATIONS), steps, generator=generator)]
    spread = options.severity - LEAST_LEVEL
    levels = LEAST_LEVEL + spread * torch.rand(steps, generator=generator)
    signs = 2 * torch.randint(0, 2, steps, generator=generator) - 1
    # PyTorch draws from these distributions with its global generator only.
    numpy = np.random.default_rng(int(torch.randint(0, 2**62, (1,), generator=generator)))
    weights = torch.from_numpy(numpy.dirichlet([options.alpha] * options.width, n)).float()
    parts = torch.from_numpy(numpy.beta(options.alpha, options.alpha, n)).float()
    return Draws(depths, operations, levels * signs, weights, parts)


@torch.no_grad()
def mix(x: Tensor, draws: Draws) -> Tensor:
    """Return images in [0, 1], each mixed with its chains, given uint8 images."""
    parts = draws.parts.to(x.device)[:, None, None, None]
    mixed = ((1 - parts) * x.float() + parts * _mix_chains(x, draws)) / HIGHEST
    return mixed.contiguous(memory_format=torch.channels_last)
