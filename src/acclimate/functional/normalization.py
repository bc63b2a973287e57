"""The constants that images are normalised with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acclimate.errors import BadInput, InvalidConfig, did_you_mean


@dataclass(frozen=True)
class Normalization:
    """The channel means and standard deviations that images are normalised with.

    `None` in its place means that the model takes images in [0, 1]: it normalises inside, or not
    at all.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        mean, std = _numbers("mean", self.mean), _numbers("std", self.std)
        message = (
            "normalization needs one mean and one std per channel, "
            f"found {len(mean)} and {len(std)}; give as many of each as the image has channels."
        )
        if not mean:
            raise InvalidConfig("missing_option", message, option="mean")
        if len(mean) != len(std):
            raise InvalidConfig("count_mismatch", message, expected=len(mean), found=len(std))
        if min(std) <= 0:
            raise InvalidConfig(
                "out_of_range",
                f"every std of a normalization must be above 0, found std={std}; "
                "give the standard deviations that the training code divides by.",
                option="std",
                found=std,
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)

    @classmethod
    def of(cls, value: object) -> Normalization | None:
        """Return the normalisation a user meant.

        Args:
            value: None, a Normalization, a (mean, std) pair, what `to_dict` returned, or a name:
                "imagenet", "cifar10", "cifar100". Several constants are in use for the CIFAR sets;
                the named ones are the statistics of the training images, taken over all pixels.
                Give the pair if the training code has others.
        """
        if value is None or isinstance(value, Normalization):
            return value
        if isinstance(value, str):
            if value not in NORMALIZATIONS:
                hint = did_you_mean(value, NORMALIZATIONS)
                raise InvalidConfig(
                    "unknown_name",
                    f'no normalization "{value}". {hint}',
                    kind="normalization",
                    name=value,
                    known=tuple(NORMALIZATIONS),
                )
            return NORMALIZATIONS[value]
        if isinstance(value, Mapping):
            return cls.from_dict(value)
        if isinstance(value, tuple | list) and len(value) == 2:
            return cls(value[0], value[1])
        raise InvalidConfig(
            "wrong_type",
            "normalization must be None, a name, or a pair (mean, std) with one number per "
            f"channel in each; found {value!r}.",
            option="normalization",
            found=type(value).__name__,
        )

    def check_channels(self, x: Tensor) -> None:
        """Raise BadInput unless the third dimension from the end of `x` has as many entries."""
        found = x.shape[-3] if x.ndim >= 3 else None
        if found != len(self.mean):
            raise BadInput(
                "count_mismatch",
                f"the normalization has {len(self.mean)} channels, found {found} in images of "
                f"shape {tuple(x.shape)}; give one mean and one std per channel.",
                expected=len(self.mean),
                found=found,
            )

    def normalize(self, x: Tensor) -> Tensor:
        """Return (x − mean) / std by channel, in the type of `x`."""
        mean, std = self._constants(x)
        return ((x.to(mean.dtype) - mean) / std).to(x.dtype)

    def denormalize(self, x: Tensor) -> Tensor:
        """Return x · std + mean by channel, in the type of `x`."""
        mean, std = self._constants(x)
        return (x.to(mean.dtype) * std + mean).to(x.dtype)

    def to_dict(self) -> dict[str, list[float]]:
        """Return the constants as plain lists."""
        return {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Normalization:
        """Return what `to_dict` was called on."""
        known = ("mean", "std")
        message = (
            'a normalization needs exactly the keys "mean" and "std", '
            f"found {sorted(map(str, value))}."
        )
        for name in known:
            if name not in value:
                raise InvalidConfig("missing_option", message, option=name)
        for name in value:
            if name not in known:
                raise InvalidConfig("unknown_option", message, option=str(name), known=known)
        return cls(value["mean"], value["std"])

    def _constants(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.check_channels(x)
        # Half precision would lose the last bits of 8-bit images here.
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        shape = (len(self.mean), 1, 1)
        mean = torch.tensor(self.mean, dtype=dtype, device=x.device).view(shape)
        return mean, torch.tensor(self.std, dtype=dtype, device=x.device).view(shape)


def _numbers(name: str, values: object) -> tuple[float, ...]:
    """Return one number, or several, as a tuple of finite floats."""
    parts: Any = values.tolist() if isinstance(values, Tensor) else values
    try:
        several = isinstance(parts, Iterable) and not isinstance(parts, str)
        numbers = tuple(float(part) for part in (parts if several else (parts,)))
    except (TypeError, ValueError) as error:
        message = f"normalization {name} must be one number per channel, found {values!r}."
        raise InvalidConfig("malformed", message, option=name, found=repr(values)) from error
    if not all(math.isfinite(number) for number in numbers):
        raise InvalidConfig(
            "out_of_range",
            f"normalization {name} must be finite, found {numbers}.",
            option=name,
            found=numbers,
        )
    return numbers


NORMALIZATIONS = {
    "imagenet": Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Normalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
