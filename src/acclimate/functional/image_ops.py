"""Image operations in which every sample of a batch has its own parameters.

One table serves all augmentations: the views of the paper (`views`), CoTTA's augmentation
(`augmentations`), and AugMix, as MEMO uses it and as models are trained with it (`augmix`).
`apply_in_order` applies the operations, each sample in an order of its own.

Colour, blur and crops compute what `torchvision.transforms.v2.functional` computes for one image,
with its rounding: images in [0, 1], of 1 or 3 channels, stay in [0, 1]. One operation in float32 is
within 3e-7 of it. A chain of operations can differ by a few 1e-6, since a hue has few digits in
float32; the two implementations inside torchvision differ from one another by as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.errors import BadInput

RED, GREEN, BLUE = 0.2989, 0.587, 0.114


def luma(x: Tensor) -> Tensor:
    """Return the grey level of each pixel, (batch, 1, height, width)."""
    if x.shape[1] == 1:
        return x.clone()
    red, green, blue = x.unbind(1)
    return (red * RED).add_(green, alpha=GREEN).add_(blue, alpha=BLUE).unsqueeze(1)


def grayscale(x: Tensor) -> Tensor:
    """Return grey images with the same number of channels as `x`."""
    return luma(x).expand_as(x)


def invert(x: Tensor) -> Tensor:
    """Return the negatives, 1 − x."""
    return 1 - x


def flip(x: Tensor) -> Tensor:
    """Return the images flipped horizontally."""
    return x.flip(-1)


def brightness_(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply `x` in place by one factor per sample, (batch, 1, 1, 1), as below."""
    return x.mul_(factors).clamp_(0, 1)


def contrast_(x: Tensor, factors: Tensor) -> Tensor:
    """Scale in place the distance of each pixel from the mean grey level of its image."""
    mean = luma(x).mean(dim=(1, 2, 3), keepdim=True)
    return x.mul_(factors).add_(mean.mul_(1 - factors)).clamp_(0, 1)


def saturation_(x: Tensor, factors: Tensor) -> Tensor:
    """Scale in place the distance of each pixel from its own grey level."""
    return torch.lerp(luma(x), x, factors, out=x).clamp_(0, 1)


def hue_(x: Tensor, factors: Tensor) -> Tensor:
    """Rotate the hue of each pixel in place, by fractions of a full turn in [-0.5, 0.5]."""
    red, green, blue = x.unbind(1)
    highest = torch.maximum(torch.maximum(red, green), blue)
    lowest = torch.minimum(torch.minimum(red, green), blue)
    chroma = highest - lowest
    # 0 if the channel is the highest, otherwise 1. Interpolating with these weights selects values
    # exactly, and is many times faster than torch.where on a CPU.
    not_red = (highest - red).sign_()
    not_green = (highest - green).sign_()
    # The neighbours of the highest channel in the cycle red, green, blue.
    before = torch.lerp(blue, torch.lerp(red, green, not_green), not_red)
    after = torch.lerp(green, torch.lerp(blue, red, not_green), not_red)
    # Grey pixels have no hue. With chroma 0 any finite value leaves them unchanged; avoid 0 / 0.
    divisor = chroma.clamp_min(torch.finfo(x.dtype).tiny)
    hue = not_green.add_(1).mul_(not_red).mul_(2)
    hue.add_((highest - before).div_(divisor)).sub_((highest - after).div_(divisor))
    # Convert sixths of a turn to turns and back. This loses digits, but matches torchvision.
    hue.mul_(1 / 6).add_(1)
    hue.sub_(hue.floor()).add_(factors.view(-1, 1, 1))
    hue.sub_(hue.floor()).mul_(6)
    # Each channel is at its maximum for a third of the turn, and rises and falls for a sixth.
    shares = (
        (hue - 3).abs_().sub_(1),
        (hue - 2).abs_().neg_().add_(2),
        (hue - 4).abs_().neg_().add_(2),
    )
    for channel, share in zip((red, green, blue), shares, strict=True):
        torch.addcmul(lowest, chroma, share.clamp_(0, 1), out=channel)
    return x


def gamma_(x: Tensor, factors: Tensor) -> Tensor:
    """Raise every pixel in place to the power of its image."""
    return x.clamp_(0, 1).pow_(factors)


#: The operations on colours, in the order of the columns of `factors`.
COLOURS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    brightness_,
    contrast_,
    saturation_,
    hue_,
    gamma_,
)
_NEUTRAL = (1.0, 1.0, 1.0, 0.0, 1.0)
_NEEDS_COLOUR = (2, 3)  # saturation and hue

#: Takes the number of an operation, samples, their positions in the batch, and the number of the
#: step. It may change the samples in place.
Change = Callable[[int, Tensor, Tensor, int], Tensor]


def apply_in_order(x: Tensor, order: Tensor, change: Change) -> Tensor:
    """Return the images after one operation per step, chosen separately for each sample.

    `order` has the number of the operation at each step, (batch, steps), on the CPU; negative for
    none.
    """
    samples = torch.arange(len(x))
    out = x
    for step in range(order.shape[1]):
        # After sorting by operation, each operation changes one contiguous part. index_select
        # copies, so `x` itself is unchanged.
        operation, by_operation = order[samples, step].sort(stable=True)
        samples = samples[by_operation]
        out = out.index_select(0, by_operation.to(x.device))
        numbers, counts = torch.unique_consecutive(operation, return_counts=True)
        sizes = counts.tolist()
        parts = zip(
            numbers.tolist(),
            out.split_with_sizes(sizes),
            samples.split_with_sizes(sizes),
            strict=True,
        )
        for number, part, own in parts:
            if number >= 0 and (changed := change(number, part, own, step)) is not part:
                part.copy_(changed)
    return out.index_select(0, samples.argsort().to(x.device))


@torch.no_grad()
def apply_colours(x: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Return the images after the operations on colours, in a separate order for each sample.

    An operation that is neutral for the whole batch is skipped, as are saturation and hue for
    images of one channel. Factors are those of the first four operations in `COLOURS`, (batch, 4),
    or of all, on the CPU, and `order` has a permutation of the columns in each row. A single row is
    used for all samples.
    """
    unused = (factors == factors.new_tensor(_NEUTRAL[: factors.shape[1]])).all(dim=0)
    if x.shape[1] == 1:
        unused[list(_NEEDS_COLOUR)] = True
    order = torch.where(unused[order], -1, order)
    values = factors.to(x.dtype)[:, :, None, None, None]
    if len(order) == 1:
        out = x.clone(memory_format=torch.contiguous_format)
        for number in order[order >= 0].tolist():
            COLOURS[number](out, values[:, number].to(x.device))
        return out

    def change(number: int, part: Tensor, rows: Tensor, step: int) -> Tensor:
        return COLOURS[number](part, values[rows, number].to(x.device))

    return apply_in_order(x, order, change)


def change_precisely(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return changed images, of the type and layout of `x`.

    `change` gets contiguous images in float32 or float64: half precision is too coarse for chains
    of operations, with or without autocast.
    """
    is_channels_last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    images = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32).contiguous()
    with torch.autocast(x.device.type, enabled=False):
        changed = change(images)
    layout = torch.channels_last if is_channels_last else torch.contiguous_format
    return changed.to(x.dtype).contiguous(memory_format=layout)


def change_(x: Tensor, chosen: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Change the chosen samples of `x` in place; all others are unchanged."""
    index = chosen.nonzero().squeeze(1).to(x.device)
    if len(index):
        x.index_copy_(0, index, change(x.index_select(0, index)))
    return x


def take_pixels(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return images made of the pixels at the given rows (batch, height) and columns of each.

    Colour becomes the last axis in memory, the layout that convolutions are fastest in.
    """
    picks = torch.arange(len(x))[:, None, None], rows[:, :, None], columns[:, None, :]
    image, row, column = (pick.to(x.device) for pick in picks)
    return x[image, :, row, column].permute(0, 3, 1, 2)


# Attempts to find a box that fits before the largest central one is used, as in torchvision.
CROP_TRIES = 10


def gaussian_blur(x: Tensor, kernel: int, sigmas: Tensor) -> Tensor:
    """Return the images blurred by a Gaussian of `kernel` × `kernel` pixels, borders reflected."""
    n, channels, height, width = x.shape
    half = kernel // 2
    if half >= min(height, width):
        text = (
            f"Expected images larger than {half} × {half} pixels for a blur of {kernel} × {kernel} "
            f"pixels, found {height} × {width}. Use a smaller kernel, or remove the blur."
        )
        raise BadInput("image_too_small", text, found=(height, width))
    line = _gaussian(half, sigmas.to(x))
    filters = (line[:, :, None] * line[:, None, :]).repeat_interleave(channels, dim=0)
    padded = F.pad(x, (half, half, half, half), mode="reflect")
    # Every image is a separate group, so that one convolution applies a filter per image.
    stacked = padded.reshape(1, n * channels, height + 2 * half, width + 2 * half)
    blurred = F.conv2d(stacked, filters.unsqueeze(1), groups=n * channels)
    return blurred.view_as(x).clamp_(0, 1)


def _gaussian(half: int, sigmas: Tensor) -> Tensor:
    """Return the weights of a Gaussian at the offsets from -half to half, (batch, 2 · half + 1)."""
    offsets = torch.arange(-half, half + 1, dtype=sigmas.dtype, device=sigmas.device)
    return torch.softmax(-0.5 * (offsets / sigmas[:, None]) ** 2, dim=1)


def crop_boxes(
    uniforms: Tensor,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    """Return boxes inside the image as (top, left, height, width), (batch, 4).

    The area and the logarithm of the aspect ratio are uniform. A box that does not fit is drawn
    again, at most ten times; then the largest central box within the ratios is used. The random
    numbers, (batch, 2 · CROP_TRIES + 2), are for areas, ratios (width to height) and positions.
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
    """Return each image's box (top, left, height, width), enlarged to the size of the image.

    The interpolation is bilinear, as a product with one matrix for the rows and one for the
    columns. A box is never larger than the result, so no anti-aliasing is needed.
    """
    n, channels, height, width = x.shape
    top, left, box_height, box_width = boxes.unbind(1)
    rows = _interpolation(top, box_height, height, x)
    columns = _interpolation(left, box_width, width, x)
    wide = torch.bmm(x.reshape(n, channels * height, width), columns.transpose(1, 2)).view_as(x)
    # Channel by channel, because a broadcast product would copy the matrices once per channel.
    parts = [torch.bmm(rows, wide[:, channel]) for channel in range(channels)]
    return torch.stack(parts, dim=1).clamp_(0, 1)


def _interpolation(start: Tensor, length: Tensor, size: int, x: Tensor) -> Tensor:
    """Return the weights of the `size` input pixels in each output pixel, (batch, size, size)."""
    # Round the centres as torch.nn.functional.interpolate does: at 224 pixels the rounding changes
    # the weights by 1e-5. This runs on the CPU because not every device supports float64.
    step = (length.double() / size).to(x.dtype).double()
    centre = (step[:, None] * (torch.arange(size, dtype=torch.float64) + 0.5)).to(x.dtype)
    pixel = torch.arange(size) - start[:, None]
    inside = (pixel >= 0) & (pixel < length[:, None])
    distance = pixel.to(x)[:, None, :] - centre.to(x.device)[:, :, None] + 0.5
    weights = (1 - distance.abs_()).clamp_(min=0).mul_(inside.to(x)[:, None, :])
    return weights.div_(weights.sum(dim=2, keepdim=True))


BLUR_REACH = 2  # pixels on either side that the blur uses: a kernel of five


def warp(x: Tensor, maps: Tensor, padding: str, margin: int = 0) -> Tensor:
    """Return images resampled bilinearly at mapped positions.

    The pixel at (column, row) is read from the column `a·column + b·row + c` and the row
    `d·column + e·row + f`, in pixels from the centre of the image; the result is larger by a margin
    on every side. Outside the image, padding `"border"` repeats the edge, `"reflection"` mirrors
    at the outermost pixels without repeating them, and `"zeros"` is black.
    """
    height, width = x.shape[-2:]
    # In units in which the centres of the outermost pixels are at -1 and 1, so that reflection
    # does not repeat them.
    half = maps.new_tensor([max(width - 1, 1) / 2, max(height - 1, 1) / 2])
    scaled = (maps / half[:, None]).to(x)
    columns = _from_centre(width, margin, x)
    rows = _from_centre(height, margin, x)[:, None]
    grid = torch.stack(map_places(scaled, columns, rows), dim=-1).expand(len(x), -1, -1, -1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=True)


def map_places(maps: Tensor, columns: Tensor, rows: Tensor) -> list[Tensor]:
    """Return the columns and the rows that are read from, each (batch, height, width)."""
    return [
        part[:, 0, None, None] * columns + part[:, 1, None, None] * rows + part[:, 2, None, None]
        for part in maps.unbind(1)
    ]


def turn_and_scale(angles: Tensor, scales: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    """Return the maps of images that are rotated, scaled, then shifted, (batch, 2, 3).

    Angles are in radians; images are shifted right by `columns` and down by `rows`, in pixels.
    """
    # A map states where a pixel is read from, so it is the inverse of the visible change.
    cosine, sine = angles.cos() / scales, angles.sin() / scales
    from_column = torch.stack([cosine, sine, -(cosine * columns + sine * rows)], dim=1)
    from_row = torch.stack([-sine, cosine, sine * columns - cosine * rows], dim=1)
    return torch.stack([from_column, from_row], dim=1)


def blur_margin(x: Tensor, sigmas: Tensor) -> Tensor:
    """Return images blurred by a Gaussian of 5 × 5 pixels, without their margin of two."""
    line = _gaussian(BLUR_REACH, sigmas).to(x)
    for axis in (2, 3):
        size = x.shape[axis] - 2 * BLUR_REACH
        total = torch.zeros_like(x.narrow(axis, 0, size))
        for step, weights in enumerate(line.unbind(1)):
            total.addcmul_(x.narrow(axis, step, size), weights[:, None, None, None])
        x = total
    return x


def _from_centre(size: int, margin: int, like: Tensor) -> Tensor:
    ends = (size - 1) / 2 + margin
    return torch.arange(size + 2 * margin, dtype=like.dtype, device=like.device) - ends


def shuffle_patches(x: Tensor, n_sides: int, generator: torch.Generator) -> Tensor:
    """Return the images with their patches in a random order, each image in one of its own.

    A side that is no multiple of the number of patches is first scaled down to the next one, and
    scaled back at the end. An image smaller than that is cut into its pixels.
    """
    n, channels, height, width = x.shape
    rows, columns = min(n_sides, height), min(n_sides, width)
    order = torch.rand(n, rows * columns, generator=generator).argsort(dim=1).to(x.device)
    cut = _resize(x, height // rows * rows, width // columns * columns)
    patch = (cut.shape[2] // rows, cut.shape[3] // columns)
    grid = cut.reshape(n, channels, rows, patch[0], columns, patch[1]).permute(0, 2, 4, 1, 3, 5)
    patches = grid.reshape(n, rows * columns, channels, *patch)
    mixed = patches[torch.arange(n, device=x.device)[:, None], order]
    grid = mixed.reshape(n, rows, columns, channels, *patch).permute(0, 3, 1, 4, 2, 5)
    return _resize(grid.reshape(cut.shape), height, width)


def _resize(x: Tensor, height: int, width: int) -> Tensor:
    if x.shape[2:] == (height, width):
        return x
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    size = (height, width)
    return F.interpolate(wide, size, mode="bilinear", antialias=True).to(x.dtype)
