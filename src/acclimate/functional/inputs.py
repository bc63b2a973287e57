"""The normalisation of images, and the checks that tensors pass before they are used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acclimate.errors import BadInput, InvalidConfig, UnsuitableModel, check_name


@dataclass(frozen=True)
class Normalization:
    """The channel means and standard deviations that images are normalised with.

    `None` instead means that the model takes images in [0, 1]: it normalises them itself, or not at
    all.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        mean, std = _numbers("mean", self.mean), _numbers("std", self.std)
        message = (
            "Expected a normalization with one mean and one std per channel, "
            f"found {len(mean)} and {len(std)}. Pass as many of each as the images have channels."
        )
        if not mean:
            raise InvalidConfig("missing_option", message, option="mean")
        if len(mean) != len(std):
            raise InvalidConfig("count_mismatch", message, expected=len(mean), found=len(std))
        if min(std) <= 0:
            raise InvalidConfig(
                "out_of_range",
                f"Expected every std of a normalization to be positive, found std={std}. "
                "Pass the standard deviations that the training code divides by.",
                option="std",
                found=std,
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)

    @classmethod
    def of(cls, value: object) -> Normalization | None:
        """Return the normalisation for None, a Normalization, a (mean, std) pair, a dict or a name.

        The names are "imagenet", "cifar10" and "cifar100". Several constants are in use for the
        CIFAR sets; the named ones are the statistics of the training images over all pixels. Pass a
        pair if the training code uses others.
        """
        if value is None or isinstance(value, Normalization):
            return value
        if isinstance(value, str):
            check_name(value, NORMALIZATIONS, "normalization", InvalidConfig)
            return NORMALIZATIONS[value]
        if isinstance(value, Mapping):
            return cls.from_dict(value)
        if isinstance(value, tuple | list) and len(value) == 2:
            return cls(value[0], value[1])
        raise InvalidConfig(
            "wrong_type",
            "Expected normalization to be None, a name, or a pair (mean, std) with one number per "
            f"channel in each, found {value!r}.",
            option="normalization",
            found=type(value).__name__,
        )

    def check_channels(self, x: Tensor) -> None:
        """Raise BadInput unless `x` (..., channels, height, width) has as many channels."""
        found = x.shape[-3] if x.ndim >= 3 else None
        if found != len(self.mean):
            raise BadInput(
                "count_mismatch",
                f"Expected images with {len(self.mean)} channels, as the normalization has, found "
                f"{found} in images of shape {tuple(x.shape)}. Pass one mean and one std per "
                "channel.",
                expected=len(self.mean),
                found=found,
            )

    def normalize(self, x: Tensor) -> Tensor:
        """Return (x − mean) / std per channel, in the dtype of `x`."""
        mean, std = self._constants(x)
        return ((x.to(mean.dtype) - mean) / std).to(x.dtype)

    def denormalize(self, x: Tensor) -> Tensor:
        """Return x · std + mean per channel, in the dtype of `x`."""
        mean, std = self._constants(x)
        return (x.to(mean.dtype) * std + mean).to(x.dtype)

    def to_dict(self) -> dict[str, list[float]]:
        """Return the constants as plain lists."""
        return {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Normalization:
        """Build a normalisation from the result of `to_dict`."""
        known = ("mean", "std")
        message = (
            'Expected a normalization with exactly the keys "mean" and "std", '
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
        # Half precision would lose the last bits of 8-bit images.
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
        message = (
            f"Expected the {name} of a normalization to be one number per channel, found "
            f"{values!r}."
        )
        raise InvalidConfig("malformed", message, option=name, found=repr(values)) from error
    if not all(map(math.isfinite, numbers)):
        message = f"Expected the {name} of a normalization to be finite, found {numbers}."
        raise InvalidConfig("out_of_range", message, option=name, found=numbers)
    return numbers


NORMALIZATIONS = {
    "imagenet": Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Normalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
IMAGE_CHANNELS = (1, 3)

# A quarter of an 8-bit step; the rounding error of the data type is added.
RANGE_TOLERANCE = 1e-3


def check_batch(x: Tensor, like_shape: tuple[int, ...] | None = None) -> None:
    """Raise BadInput unless `x` is a non-empty floating-point batch of finite numbers.

    Samples are in the first dimension and have the shape `like_shape`, if it is given.
    """
    _check_type(x)
    _check_sample_shape(x, like_shape)
    _finite_range(x)


def check_device(x: object, like: Tensor) -> None:
    """Raise BadInput if `x` is a tensor on another device than a tensor of the model."""
    if isinstance(x, Tensor) and x.device != like.device:
        raise BadInput(
            "wrong_device",
            f"Expected a batch on {like.device}, where the model is, found one on {x.device}. "
            "Move the batch or the model.",
            expected=str(like.device),
            found=str(x.device),
        )


def check_dtype(x: Tensor, like: Tensor) -> None:
    """Raise BadInput if `x` has another type than a tensor of the model; autocast allows it."""
    if x.dtype != like.dtype and not torch.is_autocast_enabled(x.device.type):
        raise BadInput(
            "wrong_dtype",
            f"Expected a batch of {like.dtype}, as the model is, found {x.dtype}. Convert the "
            "batch or the model.",
            found=str(x.dtype).removeprefix("torch."),
        )


def check_pairs(x: Tensor, x_transformed: Tensor, y: Tensor) -> None:
    """Refuse samples, transformed samples and labels (or masks) of different lengths or shapes."""
    is_labelled = y.dim() in (1, 3) and len(y) == len(x)
    if not (len(x) and x.shape == x_transformed.shape and is_labelled):
        shapes = tuple(x.shape), tuple(x_transformed.shape), tuple(y.shape)
        raise BadInput(
            "wrong_shape",
            "Expected samples, the same samples transformed, and one label or mask per sample, "
            f"found shapes {shapes[0]}, {shapes[1]} and {shapes[2]}. "
            "Pass tensors (n, ...), (n, ...) and (n,) or (n, H, W), with n of at least 1.",
            found=shapes,
        )


def check_image_shape(x: Tensor) -> None:
    """Raise BadInput unless `x` is a floating-point (batch, 1 or 3 channels, height, width).

    Values are not read, so the check is free; an empty batch passes.
    """
    _check_float_tensor(x)
    if x.ndim != 4:
        hint = " For a single image pass x.unsqueeze(0)." if x.ndim == 3 else ""
        raise BadInput(
            "wrong_shape",
            "Expected images of shape (batch, channels, height, width), "
            f"found {x.ndim} dimensions: {tuple(x.shape)}.{hint}",
            found=tuple(x.shape),
        )
    if x.shape[1] not in IMAGE_CHANNELS:
        last = x.shape[3] in IMAGE_CHANNELS
        hint = " Channels seem to be last: pass x.permute(0, 3, 1, 2)." if last else ""
        raise BadInput(
            "wrong_shape",
            f"Expected images with 1 or 3 channels, found {x.shape[1]} "
            f"(shape {tuple(x.shape)}).{hint}",
            found=tuple(x.shape),
        )


def check_images(
    x: Tensor,
    normalization: Normalization | None,
    like_shape: tuple[int, ...] | None = None,
) -> None:
    """Raise BadInput unless `x` are images whose pixels are in [0, 1] before normalisation.

    It includes all checks of `check_batch`, in one pass over the pixels.
    """
    _check_type(x)
    check_image_shape(x)
    _check_sample_shape(x, like_shape)
    if normalization is None:
        low, high = raw = _finite_range(x)
        where, were = "", ""
    else:
        normalization.check_channels(x)
        ranges = [_finite_range(x, channel) for channel in range(x.shape[1])]
        raw = min(low for low, _ in ranges), max(high for _, high in ranges)
        scales = list(zip(ranges, normalization.mean, normalization.std, strict=True))
        low = min(bounds[0] * std + mean for bounds, mean, std in scales)
        high = max(bounds[1] * std + mean for bounds, mean, std in scales)
        where = " after undoing the normalization"
        were = f" (normalised: {raw[0]:.4g} to {raw[1]:.4g})"
    tolerance = RANGE_TOLERANCE + 2 * torch.finfo(x.dtype).eps
    if low < -tolerance or high > 1 + tolerance:
        raise BadInput(
            "pixel_range",
            f"Expected pixels in [0, 1]{where}, found values from {low:.4g} to {high:.4g}{were}. "
            + _advice(*raw, is_normalised=normalization is not None),
            low=low,
            high=high,
        )


def _advice(low: float, high: float, is_normalised: bool) -> str:
    """Return the remedy for pixels that are not in [0, 1]."""
    if is_normalised and low >= 0 and high > 8:
        return "They look like 0 to 255: divide by 255, then normalise."
    if is_normalised:
        return "Pass the mean and std that these images were normalised with."
    if 2 < high <= 256 and low >= (0 if high < 20 else -0.5):
        return "They look like 0 to 255: divide by 255."
    if low >= -0.5 and high <= 2:
        # A normalised image of low contrast has this range, too, so both remedies are named.
        return (
            "If resampling overshot, use x.clamp(0, 1). "
            "If the images are normalised, pass info=ModelInfo(normalization=(mean, std))."
        )
    if low < 0 and max(-low, high) <= 20:
        return "They look normalised: pass info=ModelInfo(normalization=(mean, std))."
    return "This is not a usual range of images. Check the code that prepares the batch."


def _check_type(x: Tensor) -> None:
    _check_float_tensor(x)
    if x.ndim == 0:
        raise BadInput(
            "wrong_shape",
            "Expected a batch with samples in its first dimension, found a tensor without "
            "dimensions.",
            found=(),
        )
    if x.numel() == 0:
        raise BadInput(
            "empty_batch",
            f"Expected at least one sample, found an empty batch of shape {tuple(x.shape)}. "
            "Skip empty batches.",
        )


def _check_float_tensor(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        kind = type(x).__name__
        pair = isinstance(x, tuple | list) and any(isinstance(part, Tensor) for part in x)
        hint = "Pass only its tensor of inputs" if pair else "Convert it with torch.as_tensor"
        raise BadInput(
            "wrong_type",
            f"Expected a torch.Tensor, found {kind}. {hint}.",
            option="x",
            found=kind,
        )
    if x.dtype in FLOAT_TYPES:
        return
    if x.dtype.is_complex or x.dtype == torch.bool or x.dtype.is_floating_point:
        hint = "Pass real floating-point values, for example float32"
    else:
        hint = "Convert 8-bit images with x.float() / 255"
    names = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOAT_TYPES)
    found = str(x.dtype).removeprefix("torch.")
    raise BadInput(
        "wrong_dtype",
        f"Expected a floating-point batch ({names}), found {found}. {hint}.",
        found=found,
    )


def _check_sample_shape(x: Tensor, like_shape: tuple[int, ...] | None) -> None:
    if like_shape is not None and tuple(x.shape[1:]) != tuple(like_shape):
        raise BadInput(
            "wrong_shape",
            f"Expected samples of shape {tuple(like_shape)}, found {tuple(x.shape[1:])} "
            f"(batch {tuple(x.shape)}). Resize every batch to the same size.",
            found=tuple(x.shape),
        )


def _finite_range(x: Tensor, channel: int | None = None) -> tuple[float, float]:
    """Return minimum and maximum of the batch, or of one channel; raise BadInput if not finite."""
    part = x if channel is None else x[:, channel]
    # One pass and one transfer: a finite minimum and maximum exclude NaN and infinity.
    low, high = torch.stack(torch.aminmax(part.detach())).tolist()
    if not (math.isfinite(low) and math.isfinite(high)):
        bad = ~torch.isfinite(x).flatten(1).all(dim=1) if x.ndim > 1 else ~torch.isfinite(x)
        raise BadInput(
            "not_finite",
            f"Expected finite values, found NaN or infinity in {int(bad.sum())} of {len(x)} "
            "samples. Repair or skip them.",
            found=tuple(bad.nonzero().flatten().tolist()),
        )
    return low, high


def check_rows(logits: object, n: int) -> None:
    """Refuse an output that is not the logits of n samples."""
    expected = f"Expected logits (B, K) or (B, K, h, w) for a batch of {n} samples, found "
    advice = "Pass a `forward` that returns only the logits, one row per sample."
    if not isinstance(logits, Tensor):
        raise UnsuitableModel("no_logits", f"{expected}{type(logits)}. {advice}")
    if not (logits.dim() in (2, 4) and len(logits) == n):
        shape = tuple(logits.shape)
        message = f"{expected}shape {shape}. {advice}"
        raise UnsuitableModel("wrong_logits", message, found=shape)


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether all tensors are finite."""
    filled = [tensor.detach() for tensor in tensors if tensor.numel()]
    if not filled:
        return True
    # The maximum norm is exact, propagates NaN and infinity, and cannot overflow as a sum can.
    largest = torch._foreach_norm(filled, float("inf"))
    return bool(torch.stack([value.isfinite().to(filled[0].device) for value in largest]).all())
