"""Augmentations of batches of images in [0, 1]: those of CoTTA, which RoTTA and ROID use as well.

Those of MEMO are in `augmix`. All random numbers are drawn on the CPU, so that they depend neither
on the pixels nor on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from acclimate.functional.image_ops import (
    BLUR_REACH,
    COLOURS,
    apply_colours,
    blur_margin,
    change_,
    flip,
    turn_and_scale,
    warp,
)
from acclimate.functional.inputs import Normalization, check_images
from acclimate.functional.rng import draw_uniforms
from acclimate.functional.views import Augmentation, apply_views
from acclimate.options import Values, hp

# Lowest and highest factor of each operation on colours, in the order of `COLOURS`.
_FACTORS = ((0.6, 1.4), (0.7, 1.3), (0.5, 1.5), (-0.06, 0.06), (0.7, 1.3))
_ANGLES = (-math.pi / 12, math.pi / 12)
_SCALES = (0.9, 1.1)
# A sixteenth of the authors' image, which is padded to twice the size at this point.
_MOST_SHIFT = 1 / 8
_SIGMAS = (0.001, 0.5)

_PADDINGS = {"edge": "border", "reflect": "reflection"}


@dataclass(frozen=True)
class CottaAugmentation(Values):
    """The augmentation of CoTTA's code: colours, rotation, shift, zoom, blur, flip and noise.

    It changes brightness, contrast, saturation, hue and gamma in random order, applies an affine
    map and a blur of 5 × 5 pixels, flips with probability 0.5, and adds noise.
    """

    padding: str = hp("edge", choices=tuple(_PADDINGS), help="padding outside the image")
    blur: bool = hp(True, help="blur the images")
    noise: float = hp(0.005, low=0, help="standard deviation of the noise, of each pixel alone")
    per_image: bool = hp(False, help="draw per image; CoTTA's code draws per batch")
    in_place: bool = hp(False, help="keep pixels in place: no rotation, shift, zoom or flip")

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return augmented images; `x` is contiguous, in float32 or float64 and in [0, 1]."""
        n_colours = len(COLOURS)
        uniforms = draw_uniforms(len(x) if self.per_image else 1, 2 * n_colours + 6, generator)
        factors, ranks, rest = uniforms.split_with_sizes([n_colours, n_colours, 6], dim=1)
        low, high = factors.new_tensor(_FACTORS).unbind(1)
        out = apply_colours(x, low + factors * (high - low), ranks.argsort(dim=1))

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
        out = change_(out, (mirror < 0.5).expand(len(x)), flip)
        if self.noise:
            out = out.add_(torch.randn(x.shape, generator=generator).to(out), alpha=self.noise)
        return out.clamp_(0, 1)


def augment(
    how: Augmentation,
    x: Tensor,
    normalization: Normalization | None,
    generator: torch.Generator,
) -> Tensor:
    """Return augmented images, of the type, layout and normalisation of `x`.

    Raises:
        BadInput: The pixels without normalisation are not in [0, 1]. Clipping images with an
            undeclared normalisation would silently ruin them.
    """
    check_images(x, normalization)
    return apply_views(how, x.clamp(0, 1) if normalization is None else x, normalization, generator)


def _between(ends: tuple[float, float], uniforms: Tensor) -> Tensor:
    return ends[0] + uniforms * (ends[1] - ends[0])


def _shift(uniforms: Tensor, size: int) -> Tensor:
    """Return shifts by whole pixels, as in the authors' transform."""
    return _between((-_MOST_SHIFT * size, _MOST_SHIFT * size), uniforms).round()
