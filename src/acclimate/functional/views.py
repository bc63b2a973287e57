"""Random views of image batches: the transform function T of the paper.

A view is a value: it can be compared, printed, and written as JSON. Every sample of a batch has
its own random numbers, drawn on the CPU, one row per sample. They therefore depend neither on the
pixels nor on the device. If one generator is used for two batches, their samples get the same
numbers as in one batch.

`VIEW_SETS` contains the sets of the paper. It leaves some details open, chosen here as follows.

- `RandomChoice(..., p=0.5)` in the listing means: one of the two, each with probability 1/2, then
  applied with its own probability.
- "test": the paper states no probabilities; grayscale and blur have 0.5, as in the listing.
- "projector": the paper does not state the size of the crops. It is 0.2 to 1 of the area, as in
  TTT++, the framework of the paper's ResNet-50 experiments (torchvision's default is 0.08 to 1).
  The order is not stated either; crop and flip come first, as is usual in contrastive learning.

"crop+flip" and "simclr" are those of TTT++: the first for its statistics of the source, the second
for the two views that it contrasts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from acclimate.errors import InvalidConfig, check_name, refuse_value
from acclimate.functional.image_ops import (
    CROP_TRIES,
    apply_colours,
    apply_in_order,
    change_,
    change_precisely,
    crop_boxes,
    flip,
    gaussian_blur,
    grayscale,
    invert,
    resized_crop,
)
from acclimate.functional.inputs import Normalization, check_image_shape
from acclimate.functional.rng import draw_uniforms
from acclimate.options import Values, hp

#: Takes images in [0, 1] and a generator on the CPU; returns the same number of new images.
Augmentation = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class View(Values, ABC):
    """A random transform of images, independent for each sample."""

    #: Whether pixels may change their positions, so that masks no longer fit.
    moves_pixels: ClassVar[bool] = False
    #: Number of random numbers per sample.
    n_uniforms: ClassVar[int] = 1

    @abstractmethod
    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        """Return transformed images, given contiguous float32 or float64 images in [0, 1]."""

    def uniforms(self, n: int, generator: torch.Generator) -> Tensor:
        """Return the random numbers for `n` samples."""
        return draw_uniforms(n, self.n_uniforms, generator)

    def to_dict(self) -> dict[str, Any]:
        """Return the name of the class and the settings as plain values."""
        settings = {spec.name: _plain(getattr(self, spec.name)) for spec in fields(self)}
        return {"name": type(self).__name__, **settings}


def _plain(value: object) -> object:
    if isinstance(value, View):
        return value.to_dict()
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class ColorJitter(View):
    """Changes brightness, contrast, saturation and hue in random order.

    The first three have factors uniform in [max(0, 1 − s), 1 + s]; the hue is rotated by a fraction
    of the circle uniform in [−hue, hue].
    """

    brightness: float = hp(0.8, low=0, help="strength of the change")
    contrast: float = hp(0.8, low=0, help="strength of the change")
    saturation: float = hp(0.8, low=0, help="strength of the change")
    hue: float = hp(0.2, low=0, high=0.5, help="largest rotation as a fraction of the circle")

    n_uniforms = 8

    def decide(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        strengths = (self.brightness, self.contrast, self.saturation)
        low = uniforms.new_tensor([*(max(0.0, 1 - s) for s in strengths), -self.hue])
        high = uniforms.new_tensor([*(1 + s for s in strengths), self.hue])
        return low + uniforms[:, :4] * (high - low), uniforms[:, 4:].argsort(dim=1)

    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        return apply_colours(x, *self.decide(uniforms))


@dataclass(frozen=True)
class _Chance(View):
    """Changes a sample with probability `p`."""

    p: float = hp(0.5, low=0, high=1, help="probability of the change")

    #: The function that changes samples.
    change: ClassVar[Any]

    def decide(self, uniforms: Tensor) -> Tensor:
        return uniforms[:, 0] < self.p

    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        return change_(x.clone(), self.decide(uniforms), self.change)


class Grayscale(_Chance):
    """Converts images to grey with probability `p`; the number of channels is unchanged."""

    change = staticmethod(grayscale)


class Invert(_Chance):
    """Inverts images with probability `p`."""

    change = staticmethod(invert)


class Flip(_Chance):
    """Flips images horizontally with probability `p`."""

    change = staticmethod(flip)
    moves_pixels = True


@dataclass(frozen=True)
class Blur(View):
    """Blurs with a Gaussian of random width, with probability `p`."""

    kernel: int = hp(3, low=1, help="width of the filter in pixels, odd")
    sigma: tuple[float, float] = hp((1.0, 2.0), above=0, help="standard deviations in pixels")
    p: float = hp(0.5, low=0, high=1, help="probability of the change")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            refuse_value("kernel", self.kernel, "odd", InvalidConfig)

    n_uniforms = 2

    def decide(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.sigma
        return uniforms[:, 0] < self.p, low + uniforms[:, 1] * (high - low)

    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        chosen, sigmas = self.decide(uniforms)
        own = sigmas[chosen]
        return change_(x.clone(), chosen, lambda part: gaussian_blur(part, self.kernel, own))


@dataclass(frozen=True)
class Crop(View):
    """Crops a random box and enlarges it to the size of the image.

    The share of the area is uniform in `scale`, and the logarithm of the ratio of width to height
    is uniform in `ratio`.
    """

    scale: tuple[float, float] = hp((0.2, 1.0), above=0, high=1, help="share of the area")
    ratio: tuple[float, float] = hp((3 / 4, 4 / 3), above=0, help="width divided by height")

    moves_pixels = True
    n_uniforms = 2 * CROP_TRIES + 2

    def decide(self, uniforms: Tensor, height: int, width: int) -> Tensor:
        return crop_boxes(uniforms, height, width, self.scale, self.ratio)

    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        return resized_crop(x, self.decide(uniforms, x.shape[2], x.shape[3]))


@dataclass(frozen=True)
class _Several:
    """Several views, which share the columns of the random numbers."""

    views: tuple[View, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", views_from(self.views))

    @property
    def moves_pixels(self) -> bool:
        """Whether pixels may change their positions, so that masks no longer fit."""
        return any(view.moves_pixels for view in self.views)

    @property
    def n_uniforms(self) -> int:
        """Number of random numbers per sample."""
        return sum(view.n_uniforms for view in self.views)

    def split(self, uniforms: Tensor) -> tuple[Tensor, ...]:
        """Return the columns of each view."""
        return uniforms.split_with_sizes([view.n_uniforms for view in self.views], dim=1)


class OneOf(_Several, View):  # type: ignore[override]
    """Applies one of several equally likely views to each sample."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.views:
            refuse_value("views", (), "at least one view to choose from", InvalidConfig)

    @property
    def n_uniforms(self) -> int:  # type: ignore[override]
        return 1 + super().n_uniforms

    def decide(self, uniforms: Tensor) -> Tensor:
        return (uniforms[:, 0] * len(self.views)).long().clamp_(max=len(self.views) - 1)

    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        columns = self.split(uniforms[:, 1:])

        def change(number: int, part: Tensor, rows: Tensor, step: int) -> Tensor:
            return self.views[number].apply(part, columns[number][rows])

        return apply_in_order(x, self.decide(uniforms)[:, None], change)


VIEW_KINDS: dict[str, type[View]] = {
    kind.__name__: kind for kind in (ColorJitter, Grayscale, Invert, OneOf, Blur, Flip, Crop)
}


def view_from_dict(value: Mapping[str, Any]) -> View:
    """Build a view from the result of `to_dict`."""
    settings = dict(value)
    name = str(settings.pop("name", None))
    check_name(name, VIEW_KINDS, "view", InvalidConfig)
    if VIEW_KINDS[name] is OneOf and not settings:
        text = 'Expected OneOf to have "views", the list to choose from, found none.'
        raise InvalidConfig("missing_option", text, option="views")
    return VIEW_KINDS[name].from_dict(settings)


def views_from(values: object) -> tuple[View, ...]:
    """Return a tuple of views, given views or results of `to_dict`."""
    option, found = "views", values
    if isinstance(values, tuple | list):
        views = tuple(view_from_dict(v) if isinstance(v, Mapping) else v for v in values)
        strangers = [view for view in views if not isinstance(view, View)]
        if not strangers:
            return views
        option, found = "view", strangers[0]
    text = f"Expected a list of views ({', '.join(VIEW_KINDS)}), found {values!r}."
    raise InvalidConfig("wrong_type", text, option=option, found=type(found).__name__)


@dataclass(frozen=True)
class Views(_Several):
    """A sequence of views.

    >>> views = Views((Grayscale(p=1.0),))
    >>> views(torch.rand(2, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 8, 8])
    """

    def __iter__(self) -> Iterator[View]:
        return iter(self.views)

    def __len__(self) -> int:
        return len(self.views)

    def uniforms(self, n: int, generator: torch.Generator) -> Tensor:
        """Return the random numbers of all views for `n` samples."""
        return draw_uniforms(n, self.n_uniforms, generator)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random view of each image in [0, 1], without gradients; `x` is unchanged.

        The generator on the CPU advances by `n_uniforms` numbers per sample. Shape, dtype, device
        and memory layout stay. Samples to which no view was applied are equal bit for bit.
        """
        check_image_shape(x)
        return self.apply(x, self.uniforms(len(x), generator))

    @torch.no_grad()
    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        """Return the views of `x` for the given random numbers, (batch, n_uniforms)."""

        def change(out: Tensor) -> Tensor:
            for view, own in zip(self.views, self.split(uniforms), strict=True):
                out = view.apply(out, own)
            return out

        return change_precisely(x, change) if self.views else x.clone()

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the views as a list of plain dictionaries."""
        return [view.to_dict() for view in self.views]

    @classmethod
    def from_dict(cls, value: Sequence[Mapping[str, Any]]) -> Views:
        """Build views from the result of `to_dict`."""
        return cls(views_from(value))


_COLOR = (ColorJitter(),)
_COLOR_GRAY_INVERT = (*_COLOR, OneOf((Grayscale(), Invert())))
_SWR = (*_COLOR_GRAY_INVERT, Blur())
_TEST = (*_COLOR, Grayscale(), Blur())

_CROP_FLIP = (Crop(), Flip())
# Jitter with probability 0.8: one of the five equally likely views changes nothing.
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
    """Return the views of a name in `VIEW_SETS`, of a list of views, or of a `to_dict`.

    >>> get_views([{"name": "Grayscale", "p": 1}, Flip()])
    Views(views=(Grayscale(p=1.0), Flip(p=0.5)))
    """
    if isinstance(which, Views):
        return which
    if isinstance(which, str):
        check_name(which, VIEW_SETS, "set of views", InvalidConfig)
        return VIEW_SETS[which]
    return Views(views_from([which] if isinstance(which, View) else which))


@torch.no_grad()
def apply_views(
    views: Augmentation,
    x: Tensor,
    normalization: Normalization | None,
    generator: torch.Generator,
) -> Tensor:
    """Return views of images with a normalisation, or in [0, 1] if that is None.

    Shape, dtype, device and memory layout stay. Undoing and repeating the normalisation rounds, so
    samples to which no view was applied may differ in the last digit.
    """
    check_image_shape(x)

    def change(images: Tensor) -> Tensor:
        if normalization is None or (isinstance(views, Views) and not views):
            return views(images, generator)
        plain = normalization.denormalize(images).clamp_(0, 1)
        return normalization.normalize(views(plain, generator))

    return change_precisely(x, change)


def spread(x: Tensor, n: int) -> slice:
    """Return a slice that selects at most `n` evenly spaced samples of a batch."""
    step = -(-len(x) // n)
    return slice(None, None, step)
