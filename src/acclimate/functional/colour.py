"""Colour changes of image batches in which every sample has its own factor.

Each function computes what `torchvision.transforms.v2.functional` computes for one image, with
its rounding: images in [0, 1], of 1 or 3 channels, stay in [0, 1]. One operation in float32 is
within 3e-7 of it. A chain of operations can differ by a few 1e-6, since a hue has few digits in
float32; the two implementations inside torchvision differ from one another by as much.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

RED, GREEN, BLUE = 0.2989, 0.587, 0.114

# The operations in the order of the columns of `factors`, and the factor that changes nothing.
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
NEUTRAL = (1.0, 1.0, 1.0, 0.0)


def luma(x: Tensor) -> Tensor:
    """Return the grey level of each pixel, (batch, 1, height, width)."""
    if x.shape[1] == 1:
        return x.clone()
    red, green, blue = x.unbind(1)
    return (red * RED).add_(green, alpha=GREEN).add_(blue, alpha=BLUE).unsqueeze(1)


def grayscale(x: Tensor) -> Tensor:
    """Return grey images with as many channels as `x`."""
    return luma(x).expand_as(x)


def invert(x: Tensor) -> Tensor:
    """Return the negatives, 1 − x."""
    return 1 - x


def brightness_(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply `x` in place by one factor per sample.

    Args:
        x: Images, (batch, channels, height, width).
        factors: One per sample, (batch, 1, 1, 1); so in all functions of this kind.
    """
    return x.mul_(factors).clamp_(0, 1)


def contrast_(x: Tensor, factors: Tensor) -> Tensor:
    """Scale in place the distance of each pixel from the mean grey level of its image."""
    mean = luma(x).mean(dim=(1, 2, 3), keepdim=True)
    return x.mul_(factors).add_(mean.mul_(1 - factors)).clamp_(0, 1)


def saturation_(x: Tensor, factors: Tensor) -> Tensor:
    """Scale in place the distance of each pixel from its own grey level."""
    return torch.lerp(luma(x), x, factors, out=x).clamp_(0, 1)


def hue_(x: Tensor, factors: Tensor) -> Tensor:
    """Turn the hue of each pixel in place.

    Args:
        x: Images of three channels.
        factors: Part of a full turn, in [-0.5, 0.5].
    """
    red, green, blue = x.unbind(1)
    highest = torch.maximum(torch.maximum(red, green), blue)
    lowest = torch.minimum(torch.minimum(red, green), blue)
    chroma = highest - lowest
    # 0 where the channel is the highest, else 1: interpolating with these selects, exactly, and on
    # a CPU is many times faster than torch.where.
    not_red = (highest - red).sign_()
    not_green = (highest - green).sign_()
    # The neighbours of the highest channel in the cycle red, green, blue.
    before = torch.lerp(blue, torch.lerp(red, green, not_green), not_red)
    after = torch.lerp(green, torch.lerp(blue, red, not_green), not_red)
    # Grey pixels have no hue; with chroma 0 any value leaves them as they are, but not 0 / 0.
    divisor = chroma.clamp_min(torch.finfo(x.dtype).tiny)
    hue = not_green.add_(1).mul_(not_red).mul_(2)
    hue.add_((highest - before).div_(divisor)).sub_((highest - after).div_(divisor))
    # Sixths of a turn become turns and back. The detour costs digits, yet it is torchvision's.
    hue.mul_(1 / 6).add_(1)
    hue.sub_(hue.floor()).add_(factors.view(-1, 1, 1))
    hue.sub_(hue.floor()).mul_(6)
    # Each channel is at its highest for a third of the turn and rises and falls for a sixth.
    shares = (
        (hue - 3).abs_().sub_(1),
        (hue - 2).abs_().neg_().add_(2),
        (hue - 4).abs_().neg_().add_(2),
    )
    for channel, share in zip((red, green, blue), shares, strict=True):
        torch.addcmul(lowest, chroma, share.clamp_(0, 1), out=channel)
    return x


OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    brightness_,
    contrast_,
    saturation_,
    hue_,
)


@torch.no_grad()
def apply_color(x: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Return the images after the four colour operations, each sample with its own order of them.

    An operation that is neutral for the whole batch is left out, as are saturation and hue for
    images of one channel.

    Args:
        x: Contiguous float32 or float64 images, (batch, channels, height, width).
        factors: Of brightness, contrast, saturation and hue, (batch, 4), on the CPU.
        order: Permutations of 0 to 3, (batch, 4), on the CPU: the operation at each position.
    """
    neutral = factors.new_tensor(NEUTRAL)
    is_used = (factors != neutral).any(dim=0)
    if x.shape[1] == 1:
        is_used[SATURATION:] = False
    used = is_used.tolist()
    values = factors.to(x.dtype)
    samples = torch.arange(len(x))
    out = x
    for position in range(len(OPERATIONS)):
        # Sorted by operation, each operation has one contiguous part to work on in place. Selecting
        # copies, hence `x` itself is safe.
        operation = order[samples, position]
        by_operation = operation.argsort(stable=True)
        samples = samples[by_operation]
        out = out.index_select(0, by_operation.to(x.device))
        counts = operation.bincount(minlength=len(OPERATIONS)).tolist()
        parts = zip(
            out.split_with_sizes(counts), values[samples].split_with_sizes(counts), strict=True
        )
        for column, (part, own) in enumerate(parts):
            if used[column] and len(part):
                OPERATIONS[column](part, own[:, column, None, None, None].to(x.device))
    return out.index_select(0, samples.argsort().to(x.device))
