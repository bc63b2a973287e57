"""Random views of image batches: the transform function T of the paper.

A view is a value: it can be compared, printed, and written as JSON. Every sample of a batch has
random numbers of its own, drawn on the CPU, one row per sample. Hence they depend neither on the
pixels nor on the device; and if one generator serves two batches, their samples get the numbers
they would have had in one batch.

`VIEW_SETS` holds the sets of the paper. It leaves some things open, decided here as follows.

- `RandomChoice(..., p=0.5)` in the listing is read as: one of the two, each with probability 1/2,
  then applied with its own probability.
- "test": no probabilities are given; grayscale and blur have 0.5, as in the listing.
- "projector": the size of the crops is not given. It is 0.2 to 1 of the area, as in TTT++, the
  framework of the paper's ResNet-50 experiments (torchvision's default is 0.08 to 1). Nor is the
  order; crop and flip come first, as is usual for contrastive learning.

"crop+flip" and "simclr" are those of TTT++: the first for its summary of the source, the second
for the two views that it contrasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acclimate.errors import InvalidConfig, did_you_mean
from acclimate.functional.inputs import Normalization, check_image_shape
from acclimate.functional.view_base import View, draw_uniforms
from acclimate.functional.view_kinds import (
    Blur,
    ColorJitter,
    Crop,
    Flip,
    Grayscale,
    Invert,
    OneOf,
    views_from,
)

__all__ = [
    "VIEW_SETS",
    "Blur",
    "ColorJitter",
    "Crop",
    "Flip",
    "Grayscale",
    "Invert",
    "OneOf",
    "View",
    "Views",
    "apply_views",
    "get_views",
]


@dataclass(frozen=True)
class Views:
    """Several views, one after the other.

    >>> views = Views((Grayscale(p=1.0),))
    >>> views(torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 8, 8])
    """

    views: tuple[View, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", views_from(self.views))

    def __iter__(self) -> Iterator[View]:
        return iter(self.views)

    def __len__(self) -> int:
        return len(self.views)

    @property
    def move_pixels(self) -> bool:
        """Whether some of them may move pixels, so that a mask would no longer fit."""
        return any(view.moves_pixels for view in self.views)

    @property
    def n_uniforms(self) -> int:
        """Random numbers that one sample takes."""
        return sum(view.n_uniforms for view in self.views)

    def uniforms(self, n: int, generator: torch.Generator) -> Tensor:
        """Return the random numbers for `n` samples, the views' side by side."""
        return draw_uniforms(n, self.n_uniforms, generator)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random view of each image, without gradient; `x` stays as it is.

        Args:
            x: Images in [0, 1], (batch, channels, height, width), of 1 or 3 channels.
            generator: On the CPU; it advances by `n_uniforms` numbers per sample.

        Returns:
            Images in [0, 1] of the shape, type, device and memory layout of `x`. Samples that no
            view was applied to are equal to the last bit.
        """
        check_image_shape(x)
        return self.apply(x, self.uniforms(len(x), generator))

    @torch.no_grad()
    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        """Return the views of `x` that the given random numbers, (batch, n_uniforms), stand for."""
        is_channels_last = not x.is_contiguous() and x.is_contiguous(
            memory_format=torch.channels_last
        )
        # Half precision is too coarse for chains of operations, with or without autocast.
        out = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32).contiguous()
        columns = uniforms.split_with_sizes([view.n_uniforms for view in self.views], dim=1)
        with torch.autocast(x.device.type, enabled=False):
            for view, own in zip(self.views, columns, strict=True):
                out = view.apply(out, own)
        layout = torch.channels_last if is_channels_last else torch.contiguous_format
        out = out.to(x.dtype).contiguous(memory_format=layout)
        return out if self.views else out.clone()

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the views as a list of plain dictionaries."""
        return [view.to_dict() for view in self.views]

    @classmethod
    def from_dict(cls, value: Sequence[Mapping[str, Any]]) -> Views:
        """Return the views that `to_dict` was called on."""
        return cls(views_from(value))


_COLOR = (ColorJitter(),)
_COLOR_GRAY_INVERT = (*_COLOR, OneOf((Grayscale(), Invert())))
_SWR = (*_COLOR_GRAY_INVERT, Blur())
_TEST = (*_COLOR, Grayscale(), Blur())

_CROP_FLIP = (Crop(), Flip())
# The jitter has a probability of 0.8: one time in five, nothing happens.
_OFTEN_COLOR = OneOf((*[ColorJitter(0.4, 0.4, 0.4, 0.1)] * 4, Grayscale(0.0)))

# "color" to "color+...+crop" are the columns of the supplement's ablation.
VIEW_SETS: dict[str, Views] = {
    "none": Views(()),
    "swr": Views(_SWR),
    "test": Views(_TEST),
    "projector": Views((*_CROP_FLIP, *_TEST)),
    "crop+flip": Views(_CROP_FLIP),
    "simclr": Views((*_CROP_FLIP, _OFTEN_COLOR, Grayscale(0.2))),
    "color": Views(_COLOR),
    "color+gray": Views((*_COLOR, Grayscale())),
    "color+gray+invert": Views(_COLOR_GRAY_INVERT),
    "color+gray+invert+blur": Views(_SWR),
    "color+gray+invert+blur+flip": Views((*_SWR, Flip())),
    "color+gray+invert+blur+flip+crop": Views((*_SWR, Flip(), Crop())),
}


def get_views(which: str | View | Views | Sequence[View | Mapping[str, Any]]) -> Views:
    """Return the views a user meant.

    Args:
        which: Name of a set in `VIEW_SETS`, views, a list of them, or what `to_dict` returned.

    >>> get_views([{"name": "Grayscale", "p": 1}, Flip()])
    Views(views=(Grayscale(p=1.0), Flip(p=0.5)))
    """
    if isinstance(which, Views):
        return which
    if isinstance(which, str):
        if which not in VIEW_SETS:
            raise InvalidConfig(
                "unknown_name",
                f'no set of views "{which}". {did_you_mean(which, VIEW_SETS)}',
                kind="set of views",
                name=which,
                known=tuple(VIEW_SETS),
            )
        return VIEW_SETS[which]
    return Views(views_from([which] if isinstance(which, View) else which))


@torch.no_grad()
def apply_views(
    views: Views,
    x: Tensor,
    normalization: Normalization | None,
    generator: torch.Generator,
) -> Tensor:
    """Return views of images that may be normalised already, normalised in the same way.

    Args:
        views: The views.
        x: Images, (batch, channels, height, width), in [0, 1] before normalisation.
        normalization: What `x` was normalised with; None if it is in [0, 1] as it stands. The
            way to [0, 1] and back rounds, hence samples that no view was applied to may then
            differ in the last digit.
        generator: On the CPU.
    """
    if normalization is None or not views:
        return views(x, generator)
    check_image_shape(x)
    precise = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    image = normalization.denormalize(precise).clamp_(0, 1)
    return normalization.normalize(views(image, generator)).to(x.dtype)
