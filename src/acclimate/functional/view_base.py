"""What all kinds of random views share."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from acclimate.errors import InvalidConfig
from acclimate.functional.across import batch_rand


def draw_uniforms(n: int, n_uniforms: int, generator: torch.Generator) -> Tensor:
    """Return random numbers in [0, 1), one row per sample, (n, n_uniforms), on the CPU."""
    if generator.device.type != "cpu":
        raise InvalidConfig(
            "out_of_range",
            f"random views need a generator on the CPU, found one on {generator.device}; make it "
            "with torch.Generator(), so that results are the same on every device.",
            option="generator",
            found=str(generator.device),
        )
    return batch_rand(n, n_uniforms, generator)


@dataclass(frozen=True)
class View(ABC):
    """A random change of images, decided for each sample by itself."""

    @property
    def moves_pixels(self) -> bool:
        """Whether what was at one place may be at another: a mask would no longer fit."""
        return False

    @property
    @abstractmethod
    def n_uniforms(self) -> int:
        """Random numbers that one sample takes."""

    @abstractmethod
    def apply(self, x: Tensor, uniforms: Tensor) -> Tensor:
        """Return the changed images, all new.

        `Views` brings images of other types and layouts into the form required here.

        Args:
            x: Contiguous float32 or float64 images in [0, 1], (batch, channels, height, width).
            uniforms: What `uniforms` returned, (batch, n_uniforms).
        """

    def uniforms(self, n: int, generator: torch.Generator) -> Tensor:
        """Return the random numbers for `n` samples."""
        return draw_uniforms(n, self.n_uniforms, generator)

    def to_dict(self) -> dict[str, Any]:
        """Return the name of the kind and the settings as plain values."""
        settings = {name: _plain(getattr(self, name)) for name in self.setting_names()}
        return {"name": type(self).__name__, **settings}

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of the settings."""
        return [field.name for field in dataclasses.fields(cls)]


def change_(x: Tensor, chosen: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Change the chosen samples of `x` in place; all others keep every bit.

    Args:
        x: Images, samples first.
        chosen: Which samples to change, (batch,), on the CPU.
        change: Takes the chosen samples and returns as many.
    """
    index = chosen.nonzero().squeeze(1).to(x.device)
    if len(index):
        x.index_copy_(0, index, change(x.index_select(0, index)))
    return x


def set_number(view: View, field: str, lowest: float, highest: float) -> None:
    """Make a setting a float; raise InvalidConfig unless it lies within the bounds."""
    value = getattr(view, field)
    if not _is_number(value) or not lowest <= value <= highest:
        message = (
            f"{type(view).__name__} needs as {field} a number from {lowest} to {highest}, "
            f"found {value!r}."
        )
        refuse(message, field, value, isinstance(value, int | float))
    object.__setattr__(view, field, float(value))


def set_range(view: View, field: str, highest: float) -> None:
    """Make a setting a pair of floats; raise InvalidConfig unless 0 < low <= high <= highest."""
    value = getattr(view, field)
    pair = tuple(value) if isinstance(value, tuple | list) else ()
    if (
        len(pair) != 2
        or not all(_is_number(end) for end in pair)
        or not 0 < pair[0] <= pair[1] <= highest
    ):
        message = (
            f"{type(view).__name__} needs as {field} a pair (low, high) with "
            f"0 < low <= high <= {highest}, found {value!r}."
        )
        refuse(message, field, value, isinstance(value, tuple | list))
    object.__setattr__(view, field, (float(pair[0]), float(pair[1])))


def refuse(message: str, option: str, value: object, has_type: bool) -> NoReturn:
    """Raise InvalidConfig about a setting, which has the right type or not even that."""
    if has_type:
        raise InvalidConfig("out_of_range", message, option=option, found=value)
    raise InvalidConfig("wrong_type", message, option=option, found=type(value).__name__)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _plain(value: object) -> object:
    if isinstance(value, View):
        return value.to_dict()
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
