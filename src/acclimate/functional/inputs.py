"""The checks a batch passes before a method uses it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.functional.normalization import Normalization

__all__ = ["Normalization", "check_batch", "check_image_shape", "check_images"]

FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
IMAGE_CHANNELS = (1, 3)

# A quarter of an 8-bit step; the rounding of the data type comes on top.
RANGE_TOLERANCE = 1e-3


def check_batch(x: Tensor, like_shape: tuple[int, ...] | None = None) -> None:
    """Raise BadInput unless `x` is a non-empty floating batch of finite numbers.

    Args:
        x: Batch of inputs of any kind, samples first.
        like_shape: Shape that every sample must have; None allows any.
    """
    _check_type(x)
    _check_sample_shape(x, like_shape)
    _finite_range(x)


def check_image_shape(x: Tensor) -> None:
    """Raise BadInput unless `x` is floating, (batch, channels, height, width), of 1 or 3 channels.

    Looks at no value, hence costs nothing; an empty batch passes.
    """
    _check_float_tensor(x)
    if x.ndim != 4:
        hint = " For a single image give x.unsqueeze(0)." if x.ndim == 3 else ""
        raise BadInput(
            "wrong_shape",
            "expected images of shape (batch, channels, height, width), "
            f"found {x.ndim} dimensions: {tuple(x.shape)}.{hint}",
            found=tuple(x.shape),
        )
    if x.shape[1] not in IMAGE_CHANNELS:
        last = x.shape[3] in IMAGE_CHANNELS
        hint = " Channels seem to come last: give x.permute(0, 3, 1, 2)." if last else ""
        raise BadInput(
            "wrong_shape",
            f"expected images of 1 or 3 channels, found {x.shape[1]} "
            f"(shape {tuple(x.shape)}).{hint}",
            found=tuple(x.shape),
        )


def check_images(
    x: Tensor,
    normalization: Normalization | None,
    like_shape: tuple[int, ...] | None = None,
) -> None:
    """Raise BadInput unless `x` are images whose pixels lie in [0, 1] before normalisation.

    Includes everything `check_batch` looks at, in one pass over the pixels.

    Args:
        x: Images, (batch, channels, height, width).
        normalization: What `x` was normalised with; None if it is in [0, 1] as it stands.
        like_shape: Shape that every sample must have; None allows any.
    """
    _check_type(x)
    check_image_shape(x)
    _check_sample_shape(x, like_shape)
    tolerance = RANGE_TOLERANCE + 2 * torch.finfo(x.dtype).eps
    if normalization is None:
        low, high = _finite_range(x)
        if low < -tolerance or high > 1 + tolerance:
            raise BadInput(
                "pixel_range",
                f"expected pixels in [0, 1], found values from {low:.4g} to {high:.4g}. "
                + _advice(low, high),
                low=low,
                high=high,
            )
        return
    normalization.check_channels(x)
    ranges = [_finite_range(x, channel) for channel in range(x.shape[1])]
    constants = list(zip(normalization.mean, normalization.std, strict=True))
    pairs = list(zip(ranges, constants, strict=True))
    low = min(bounds[0] * std + mean for bounds, (mean, std) in pairs)
    high = max(bounds[1] * std + mean for bounds, (mean, std) in pairs)
    if low < -tolerance or high > 1 + tolerance:
        raw_low, raw_high = min(lo for lo, _ in ranges), max(hi for _, hi in ranges)
        eight_bit = raw_low >= 0 and raw_high > 8
        raise BadInput(
            "pixel_range",
            "expected pixels in [0, 1] once the normalization is undone, found values from "
            f"{low:.4g} to {high:.4g} (normalised: {raw_low:.4g} to {raw_high:.4g}). "
            + (
                "They look like 0 to 255: divide by 255, then normalise."
                if eight_bit
                else "Pass as normalization the mean and std that made these tensors."
            ),
            low=low,
            high=high,
        )


def _advice(low: float, high: float) -> str:
    """Return what to do about pixels that are not in [0, 1]."""
    if 2 < high <= 256 and low >= (0 if high < 20 else -0.5):
        return "They look like 0 to 255: divide by 255."
    if low >= -0.5 and high <= 2:
        # A normalised image has this range too if it is of low contrast, so both are named.
        return (
            "If resampling overshot, use x.clamp(0, 1); "
            "if they are normalised, pass normalization=(mean, std)."
        )
    if low < 0 and max(-low, high) <= 20:
        return "They look normalised: pass normalization=(mean, std) with the constants used."
    return "They are no image in any usual scale: check what prepares the batch."


def _check_type(x: Tensor) -> None:
    _check_float_tensor(x)
    if x.ndim == 0:
        raise BadInput(
            "wrong_shape",
            "expected a batch, samples first; found a tensor without dimensions.",
            found=(),
        )
    if x.numel() == 0:
        raise BadInput(
            "empty_batch",
            f"expected at least one sample, found an empty batch of shape {tuple(x.shape)}; "
            "leave empty batches out.",
        )


def _check_float_tensor(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        kind = type(x).__name__
        pair = isinstance(x, tuple | list) and any(isinstance(part, Tensor) for part in x)
        hint = "give its tensor of inputs alone" if pair else "convert it with torch.as_tensor"
        raise BadInput(
            "wrong_type",
            f"expected a torch.Tensor, found {kind}; {hint}.",
            option="x",
            found=kind,
        )
    if x.dtype in FLOAT_TYPES:
        return
    if x.dtype.is_complex or x.dtype == torch.bool or x.dtype.is_floating_point:
        hint = "give real floating-point values, for example float32"
    else:
        hint = "convert 8-bit images with x.float() / 255"
    names = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOAT_TYPES)
    found = str(x.dtype).removeprefix("torch.")
    raise BadInput(
        "wrong_dtype",
        f"expected a floating batch ({names}), found {found}; {hint}.",
        found=found,
    )


def _check_sample_shape(x: Tensor, like_shape: tuple[int, ...] | None) -> None:
    if like_shape is not None and tuple(x.shape[1:]) != tuple(like_shape):
        raise BadInput(
            "wrong_shape",
            f"expected samples of shape {tuple(like_shape)}, found {tuple(x.shape[1:])} "
            f"(batch {tuple(x.shape)}); bring every batch to the same size.",
            found=tuple(x.shape),
        )


def _finite_range(x: Tensor, channel: int | None = None) -> tuple[float, float]:
    """Return minimum and maximum of the batch, or of one channel; raise BadInput if not finite."""
    part = x if channel is None else x[:, channel]
    # One pass and one transfer: a minimum or maximum that is finite excludes NaN and infinity.
    low, high = torch.stack(torch.aminmax(part.detach())).tolist()
    if not (math.isfinite(low) and math.isfinite(high)):
        bad = ~torch.isfinite(x).flatten(1).all(dim=1) if x.ndim > 1 else ~torch.isfinite(x)
        raise BadInput(
            "not_finite",
            f"expected finite values, found NaN or infinity in {int(bad.sum())} of {len(x)} "
            "samples; repair or leave them out.",
            found=tuple(bad.nonzero().flatten().tolist()),
        )
    return low, high
