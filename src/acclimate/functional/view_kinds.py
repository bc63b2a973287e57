"""The kinds of random views.

Each is a value with settings. `decide` turns uniform random numbers into what is to be done to
each sample, `apply` does it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from acclimate.errors import InvalidConfig, did_you_mean
from acclimate.functional.colour import apply_color, grayscale, invert
from acclimate.functional.spatial import CROP_TRIES, crop_boxes, gaussian_blur, resized_crop
from acclimate.functional.view_base import View, change_, refuse, set_number, set_range


@dataclass(frozen=True)
class ColorJitter(View):
    """Changes brightness, contrast, saturation and hue, in random order.

    The first three have factors uniform in [max(0, 1 − s), 1 + s]; the hue is turned by a part of
    the circle uniform in [−hue, hue].
    """

    brightness: float = 0.8
    contrast: float = 0.8
    saturation: float = 0.8
    hue: float = 0.2

    def __post_init__(self) -> None:
        for field in ("brightness", "contrast", "saturation"):
            set_number(self, field, 0, math.inf)
        set_number(self, "hue", 0, 0.5)

    @property
    def n_uniforms(self) -> int:
        return 8

    def decide(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Return factors and order of the operations, each (batch, 4); see `apply_color`."""
        strengths = (self.brightness, self.contrast, self.saturation)
        low = uniforms.new_tensor([*(max(0.0, 1 - s) for s in strengths), -self.hue])
        high = uniforms.new_tensor([*(1 + s for s in strengths), self.hue])
        return low + uniforms[:, :4] * (high - low), uniforms[:, 4:].argsort(dim=1)

    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        return apply_color(x, *self.decide(uniforms))


@dataclass(frozen=True)
class _Chance(View):
    """Changes a sample with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        set_number(self, "p", 0, 1)

    @property
    def n_uniforms(self) -> int:
        return 1

    def decide(self, uniforms: Tensor) -> Tensor:
        """Return which samples are changed, (batch,)."""
        return uniforms[:, 0] < self.p


class Grayscale(_Chance):
    """Takes the colour away with probability `p`; the number of channels stays."""

    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        if x.shape[1] == 1:
            return x.clone()  # grey already
        return change_(x.clone(), self.decide(uniforms), grayscale)


class Invert(_Chance):
    """Turns images into their negatives with probability `p`."""

    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        return change_(x.clone(), self.decide(uniforms), invert)


class Flip(_Chance):
    """Mirrors left and right with probability `p`."""

    @property
    def moves_pixels(self) -> bool:
        return True

    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        return change_(x.clone(), self.decide(uniforms), lambda part: part.flip(-1))


@dataclass(frozen=True)
class Blur(View):
    """Blurs with a Gaussian of random width, with probability `p`."""

    kernel: int = 3
    sigma: tuple[float, float] = (1.0, 2.0)
    p: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, int) or self.kernel < 1 or self.kernel % 2 == 0:
            message = f"Blur needs as kernel an odd whole number of pixels, found {self.kernel!r}."
            refuse(message, "kernel", self.kernel, isinstance(self.kernel, int))
        set_range(self, "sigma", math.inf)
        set_number(self, "p", 0, 1)

    @property
    def n_uniforms(self) -> int:
        return 2

    def decide(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Return which samples are blurred and the sigma of every sample, each (batch,)."""
        low, high = self.sigma
        return uniforms[:, 0] < self.p, low + uniforms[:, 1] * (high - low)

    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        chosen, sigmas = self.decide(uniforms)

        def blur(part: Tensor) -> Tensor:
            return gaussian_blur(part, self.kernel, sigmas[chosen])

        return change_(x.clone(), chosen, blur)


@dataclass(frozen=True)
class Crop(View):
    """Cuts out a random box and enlarges it to the size of the image.

    The box has a part of the area uniform in `scale`, and a ratio of width to height whose
    logarithm is uniform in `ratio`.
    """

    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        set_range(self, "scale", 1)
        set_range(self, "ratio", math.inf)

    @property
    def moves_pixels(self) -> bool:
        return True

    @property
    def n_uniforms(self) -> int:
        return 2 * CROP_TRIES + 2

    def decide(self, uniforms: Tensor, height: int, width: int) -> Tensor:
        """Return a box for every sample, (batch, 4): top, left, height, width."""
        return crop_boxes(uniforms, height, width, self.scale, self.ratio)

    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        return resized_crop(x, self.decide(uniforms, x.shape[2], x.shape[3]))


@dataclass(frozen=True)
class OneOf(View):
    """Applies to each sample one of several views, all equally likely."""

    views: tuple[View, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", views_from(self.views))
        if not self.views:
            raise InvalidConfig(
                "out_of_range",
                "OneOf needs at least one view to choose from, found none.",
                option="views",
                found=(),
            )

    @property
    def moves_pixels(self) -> bool:
        return any(view.moves_pixels for view in self.views)

    @property
    def n_uniforms(self) -> int:
        return 1 + sum(view.n_uniforms for view in self.views)

    def decide(self, uniforms: Tensor) -> Tensor:
        """Return the position in `views` of the view that each sample gets, (batch,)."""
        return (uniforms[:, 0] * len(self.views)).long().clamp_(max=len(self.views) - 1)

    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        choice = self.decide(uniforms)
        columns = uniforms[:, 1:].split_with_sizes([v.n_uniforms for v in self.views], dim=1)
        out = x.clone()
        for position, (view, own) in enumerate(zip(self.views, columns, strict=True)):
            chosen = choice == position
            change_(out, chosen, partial(view.apply, uniforms=own[chosen]))
        return out


VIEW_KINDS: dict[str, type[View]] = {
    kind.__name__: kind for kind in (ColorJitter, Grayscale, Invert, OneOf, Blur, Flip, Crop)
}


def view_from_dict(value: Mapping[str, Any]) -> View:
    """Return the view that `to_dict` was called on."""
    settings = dict(value)
    name = str(settings.pop("name", None))
    if name not in VIEW_KINDS:
        raise InvalidConfig(
            "unknown_name",
            f'no view "{name}". {did_you_mean(name, VIEW_KINDS)}',
            kind="view",
            name=name,
            known=tuple(VIEW_KINDS),
        )
    kind = VIEW_KINDS[name]
    known = kind.setting_names()
    for setting in map(str, settings):
        if setting not in known:
            raise InvalidConfig(
                "unknown_option",
                f'{name} has no "{setting}". {did_you_mean(setting, known)}',
                option=setting,
                known=tuple(known),
            )
    if kind is OneOf and not settings:
        raise InvalidConfig(
            "missing_option",
            'OneOf needs "views", the list to choose from; found none.',
            option="views",
        )
    return kind(**settings)


def views_from(values: object) -> tuple[View, ...]:
    """Return a tuple of views, given as such or as what `to_dict` returned."""
    if not isinstance(values, tuple | list):
        raise InvalidConfig(
            "wrong_type",
            f"expected a list of views, found {values!r}.",
            option="views",
            found=type(values).__name__,
        )
    views = tuple(view_from_dict(v) if isinstance(v, Mapping) else v for v in values)
    for view in views:
        if not isinstance(view, View):
            known = ", ".join(VIEW_KINDS)
            raise InvalidConfig(
                "wrong_type",
                f"expected a list of views ({known}), found {view!r} in it.",
                option="view",
                found=type(view).__name__,
            )
    return views
