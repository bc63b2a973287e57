"""Blur and random crops of image batches in which every sample has its own parameters.

Both equal `torchvision.transforms.v2.functional` applied image by image, to 3e-7 in float32.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.errors import BadInput

# Tries for a box that fits before the largest central one is taken; torchvision's number.
CROP_TRIES = 10


def gaussian_blur(x: Tensor, kernel: int, sigmas: Tensor) -> Tensor:
    """Return the images under a Gaussian of `kernel` × `kernel` pixels, borders reflected.

    Args:
        x: Images, (batch, channels, height, width).
        kernel: Odd width of the filter in pixels.
        sigmas: Standard deviation in pixels, (batch,).
    """
    n, channels, height, width = x.shape
    half = kernel // 2
    if half >= min(height, width):
        raise BadInput(
            "image_too_small",
            f"a blur of {kernel} × {kernel} pixels needs images larger than {half} × {half}, "
            f"found {height} × {width}; choose a smaller kernel or leave the blur out.",
            found=(height, width),
        )
    offsets = torch.arange(-half, half + 1, dtype=x.dtype, device=x.device)
    line = torch.softmax(-0.5 * (offsets / sigmas.to(x)[:, None]) ** 2, dim=1)
    filters = (line[:, :, None] * line[:, None, :]).repeat_interleave(channels, dim=0)
    padded = F.pad(x, (half, half, half, half), mode="reflect")
    # Every image is a group of its own, so that one convolution has a filter for each.
    stacked = padded.reshape(1, n * channels, height + 2 * half, width + 2 * half)
    blurred = F.conv2d(stacked, filters.unsqueeze(1), groups=n * channels)
    return blurred.view_as(x).clamp_(0, 1)


def crop_boxes(
    uniforms: Tensor,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    """Return boxes inside the image as (top, left, height, width), (batch, 4).

    Area and logarithm of the aspect ratio are uniform. A box that does not fit is drawn anew, ten
    times at most; then the largest central box within the ratios is taken.

    Args:
        uniforms: Random numbers in [0, 1), (batch, 2 · CROP_TRIES + 2): areas, ratios, place.
        height: Of the image.
        width: Of the image.
        scale: Smallest and largest part of the image's area.
        ratio: Smallest and largest ratio of width to height.
    """
    area = height * width * (scale[0] + uniforms[:, :CROP_TRIES] * (scale[1] - scale[0]))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = torch.exp(low + uniforms[:, CROP_TRIES : 2 * CROP_TRIES] * (high - low))
    widths, heights = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.int().argmax(dim=1, keepdim=True)
    found = fits.any(dim=1)

    own_ratio = min(max(width / height, ratio[0]), ratio[1])
    largest = (min(height, round(width / own_ratio)), min(width, round(height * own_ratio)))
    box_heights = heights.gather(1, first).squeeze(1).where(found, max(1, largest[0]))
    box_widths = widths.gather(1, first).squeeze(1).where(found, max(1, largest[1]))
    place = uniforms[:, 2 * CROP_TRIES :].unbind(1)
    free_rows, free_columns = height - box_heights, width - box_widths
    tops = (place[0] * (free_rows + 1)).floor().where(found, (free_rows / 2).floor())
    lefts = (place[1] * (free_columns + 1)).floor().where(found, (free_columns / 2).floor())
    return torch.stack([tops, lefts, box_heights, box_widths], dim=1).long()


def resized_crop(x: Tensor, boxes: Tensor) -> Tensor:
    """Return each image's box, enlarged to the size of the image.

    Bilinear, as a product with one matrix for the rows and one for the columns. A box is never
    larger than the result, hence smoothing against aliasing has nothing to do.

    Args:
        x: Images, (batch, channels, height, width).
        boxes: (top, left, height, width) of each sample, (batch, 4), on the CPU.
    """
    n, channels, height, width = x.shape
    top, left, box_height, box_width = boxes.unbind(1)
    rows = _interpolation(top, box_height, height, x)
    columns = _interpolation(left, box_width, width, x)
    wide = torch.bmm(x.reshape(n, channels * height, width), columns.transpose(1, 2)).view_as(x)
    # Channel by channel, for a broadcast product would copy the matrices once per channel.
    parts = [torch.bmm(rows, wide[:, channel]) for channel in range(channels)]
    return torch.stack(parts, dim=1).clamp_(0, 1)


def _interpolation(start: Tensor, length: Tensor, size: int, x: Tensor) -> Tensor:
    """Return the weights of the `size` input pixels in each output pixel, (batch, size, size)."""
    # The centres are rounded where torch.nn.functional.interpolate rounds them: at 224 pixels the
    # rounding moves the weights by 1e-5. On the CPU, for not every device has float64.
    step = (length.double() / size).to(x.dtype).double()
    centre = (step[:, None] * (torch.arange(size, dtype=torch.float64) + 0.5)).to(x.dtype)
    pixel = torch.arange(size) - start[:, None]
    inside = (pixel >= 0) & (pixel < length[:, None])
    distance = pixel.to(x)[:, None, :] - centre.to(x.device)[:, :, None] + 0.5
    weights = (1 - distance.abs_()).clamp_(min=0).mul_(inside.to(x)[:, None, :])
    return weights.div_(weights.sum(dim=2, keepdim=True))
