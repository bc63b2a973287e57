"""Augmentations of whole batches of images in [0, 1]: CoTTA's, which RoTTA and ROID share.

MEMO's are in `augmix`. All random numbers are drawn on the CPU, so that they depend neither on the
pixels nor on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from acclimate.errors import InvalidConfig
from acclimate.functional.colour import brightness_, contrast_, hue_, saturation_
from acclimate.functional.inputs import check_images
from acclimate.functional.normalization import Normalization
from acclimate.functional.view_base import change_, draw_uniforms
from acclimate.functional.warp import BLUR_REACH, blur_margin, turn_and_scale, warp

#: Takes images in [0, 1] and a generator on the CPU; returns as many, new, in [0, 1].
Augmentation = Callable[[Tensor, torch.Generator], Tensor]

# Lowest and highest factor of each operation on colours, in the order of `_OPERATIONS`.
_FACTORS = ((0.6, 1.4), (0.7, 1.3), (0.5, 1.5), (-0.06, 0.06), (0.7, 1.3))
_NEED_COLOUR = (False, False, True, True, False)
_ANGLES = (-math.pi / 12, math.pi / 12)
_SCALES = (0.9, 1.1)
# A sixteenth of the authors' image, which is padded to twice the size at this point.
_MOST_SHIFT = 1 / 8
_SIGMAS = (0.001, 0.5)

_PADDINGS = {"edge": "border", "reflect": "reflection"}


def gamma_(x: Tensor, factors: Tensor) -> Tensor:
    """Raise every pixel in place to a power of its own image, (batch, 1, 1, 1)."""
    return x.clamp_(0, 1).pow_(factors)


_OPERATIONS = (brightness_, contrast_, saturation_, hue_, gamma_)
_N_COLOUR = len(_OPERATIONS)


@dataclass(frozen=True)
class CottaAugmentation:
    """The augmentation of CoTTA's code: colours, a small turn, shift and zoom, blur, flip, noise.

    Brightness, contrast, saturation, hue and gamma in random order; an affine map; a blur of 5 × 5
    pixels; a mirror image half of the time; noise.

    Attributes:
        padding: What lies outside the image: `"edge"` or `"reflect"`.
        blur: Whether images are blurred.
        noise: Standard deviation of the noise; every pixel has its own.
        per_image: Whether every image has its own draws. CoTTA's code has one a batch.
        in_place: Whether every pixel stays in its place: no turn, shift, zoom or mirror image.
    """

    padding: str = "edge"
    blur: bool = True
    noise: float = 0.005
    per_image: bool = False
    in_place: bool = False

    def __post_init__(self) -> None:
        if self.padding not in _PADDINGS:
            raise InvalidConfig(
                "unknown_name",
                f'expected padding to be "edge" or "reflect", found {self.padding!r}.',
                kind="padding",
                name=self.padding,
                known=tuple(_PADDINGS),
            )
        if not 0 <= self.noise < math.inf:
            raise InvalidConfig(
                "out_of_range",
                f"expected noise of at least 0, found {self.noise!r}.",
                option="noise",
                found=self.noise,
            )

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images changed; `x` stays as it is.

        Args:
            x: Contiguous float32 or float64 images in [0, 1], (batch, channels, height, width).
            generator: On the CPU.
        """
        n_draws = len(x) if self.per_image else 1
        uniforms = draw_uniforms(n_draws, 2 * _N_COLOUR + 6, generator)
        factors, ranks, rest = uniforms.split_with_sizes([_N_COLOUR, _N_COLOUR, 6], dim=1)
        low, high = factors.new_tensor(_FACTORS).unbind(1)
        out = change_colours(x, low + factors * (high - low), ranks.argsort(dim=1))

        angle, scale, column, row, sigma, mirror = rest.unbind(1)
        if self.in_place:
            still = torch.zeros_like(angle)
            angle, scale, column, row, mirror = still, still + 1, still, still, still + 1
        else:
            angle, scale = _between(_ANGLES, angle), _between(_SCALES, scale)
            column, row = _shift(column, x.shape[3]), _shift(row, x.shape[2])
        maps = turn_and_scale(angle, scale, column, row)
        out = warp(out, maps, _PADDINGS[self.padding], margin=BLUR_REACH if self.blur else 0)
        if self.blur:
            out = blur_margin(out, _between(_SIGMAS, sigma))
        out = change_(out, (mirror < 0.5).expand(len(x)), lambda part: part.flip(-1))
        if self.noise:
            out = out.add_(torch.randn(x.shape, generator=generator).to(out), alpha=self.noise)
        return out.clamp_(0, 1)


@torch.no_grad()
def change_colours(x: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Return the images after brightness, contrast, saturation, hue and gamma.

    Saturation and hue are left out for images of one channel.

    Args:
        x: Contiguous images in [0, 1], (batch, channels, height, width).
        factors: Of the five, for each image, (batch, 5), or for all, (1, 5); on the CPU.
        order: Permutations of 0 to 4, in as many rows: the operation at each position.
    """
    out = x.clone(memory_format=torch.contiguous_format)
    values = factors.to(x.dtype)
    usable = [not needed or x.shape[1] > 1 for needed in _NEED_COLOUR]
    if len(order) == 1:
        for number in order[0].tolist():
            if usable[number]:
                _OPERATIONS[number](out, values[:, number, None, None, None].to(x.device))
        return out
    for position in order.unbind(1):
        for number, operation in enumerate(_OPERATIONS):
            chosen = position == number
            if usable[number]:
                own = values[chosen, number, None, None, None].to(x.device)
                change_(out, chosen, partial(operation, factors=own))
    return out


@torch.no_grad()
def augment(
    how: Augmentation,
    x: Tensor,
    normalization: Normalization | None,
    generator: torch.Generator,
) -> Tensor:
    """Return augmented images, of the type, layout and normalisation of `x`.

    Args:
        how: The augmentation, of images in [0, 1].
        x: Images, (batch, channels, height, width).
        normalization: What `x` was normalised with; None if it is in [0, 1] as it stands.
        generator: On the CPU.

    Raises:
        BadInput: The pixels are not in [0, 1] once the normalisation is undone. To clip those of
            images that are normalised without this being said would ruin them quietly.
    """
    check_images(x, normalization)
    is_channels_last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    # Half precision is too coarse for chains of operations, with or without autocast.
    images = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32).contiguous()
    with torch.autocast(x.device.type, enabled=False):
        if normalization is not None:
            images = normalization.denormalize(images)
        changed = how(images.clamp(0, 1), generator)
        if normalization is not None:
            changed = normalization.normalize(changed)
    layout = torch.channels_last if is_channels_last else torch.contiguous_format
    return changed.to(x.dtype).contiguous(memory_format=layout)


def copy_generator(generator: torch.Generator) -> torch.Generator:
    """Return a generator of the same numbers, so that the given one need not advance."""
    result = torch.Generator()
    result.set_state(generator.get_state())
    return result


def _between(ends: tuple[float, float], uniforms: Tensor) -> Tensor:
    return ends[0] + uniforms * (ends[1] - ends[0])


def _shift(uniforms: Tensor, size: int) -> Tensor:
    """Return shifts by whole pixels, as the authors' transform makes them."""
    return _between((-_MOST_SHIFT * size, _MOST_SHIFT * size), uniforms).round()
