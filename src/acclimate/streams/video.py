"""A scenario of video-like frames: one image after the other, each with small smooth changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.streams.batch import Batch, Domain, Stream
from acclimate.streams.cutting import check, describe, seed_from, shuffled

# Frames of one oscillation, at least and at most.
_PERIODS = (32.0, 64.0)
# Translation: part of the side, and pixels from one frame to the next, at most.
_SHIFT, _SPEED = 1 / 32, 0.5
# Zoom, and brightness and noise as parts of the range of values.
_ZOOM, _BRIGHTNESS, _NOISE = 0.025, 0.025, 0.01


def video(
    domains: Sequence[Domain],
    frames: int = 32,
    n_scenes: int | None = None,
    batch_size: int = 64,
    seed: int = 0,
) -> Stream:
    """Return a continual stream of video-like frames.

    Every image is a scene of `frames` frames in a row with one label. From frame to frame it moves
    by less than a pixel, and its size and brightness change slightly; sensor noise is added to each
    frame. Borders are filled by reflection. Values stay in the range of the domain: in [0, 1], or
    between the lowest and the highest value of each channel if the images are normalised.

    Each domain has `n_scenes` scenes, chosen by the seed, or one of each image. Masks, which would
    have to move as well, are refused.
    """
    check(domains, batch_size, frames=frames, n_scenes=n_scenes)

    def make() -> Iterator[Batch]:
        for number, domain in enumerate(domains):
            labels = domain.labels
            low, high = domain.value_range()
            order = shuffled(len(domain), seed)[:n_scenes]
            for start in range(0, len(order) * frames, batch_size):
                places = range(start, min(start + batch_size, len(order) * frames))
                parts = []
                for scene in range(places[0] // frames, places[-1] // frames + 1):
                    image, _ = domain.take(order[scene : scene + 1])
                    _check_image(image, domain)
                    times = [place % frames for place in places if place // frames == scene]
                    shown = film(image[0], times, (low, high), (seed, number, scene))
                    parts.append(shown)
                y = labels[order[torch.tensor(places) // frames]]
                yield Batch(torch.cat(parts), y, domain.name, number == 0 and start == 0)

    scenes = "each image" if n_scenes is None else f"each of {n_scenes} images a domain"
    name = f"continual, video-like: {frames} frames of {scenes}, no reset"
    return Stream(describe(name, domains, batch_size, seed), make)


def film(
    image: Tensor, times: Sequence[int], limits: tuple[Tensor, Tensor], seeds: tuple[int, ...]
) -> Tensor:
    """Return frames of a scene, of which that at time 0 shows the image (c, h, w) unmoved.

    `limits` are the lowest and the highest value of each channel; `seeds` identify the scene.
    """
    height, width = image.shape[1:]
    low, high = (limit.to(image) for limit in limits)
    draws = torch.rand(3, 4, generator=seed_from(*seeds), dtype=torch.float64)
    period = _PERIODS[0] + (_PERIODS[1] - _PERIODS[0]) * draws[0]
    slowest = period / math.tau  # an amplitude of this many pixels is a speed of 1 pixel a frame
    most = torch.tensor([_SHIFT * width, _SHIFT * height, _ZOOM, _BRIGHTNESS]).double()
    bound = _SPEED * slowest * torch.tensor([1, 1, 1 / max(height, width), torch.inf])
    amplitude = torch.minimum(most, bound) * (0.5 + 0.5 * draws[1])
    phase = math.tau * draws[2]
    angle = math.tau * torch.tensor(times, dtype=torch.float64)[:, None] / period + phase
    drift = (amplitude * (angle.sin() - phase.sin())).to(image)
    zoom = 1 + drift[:, 2]
    places = torch.zeros(len(times), 2, 3).to(image)
    places[:, 0, 0] = places[:, 1, 1] = zoom
    places[:, 0, 2], places[:, 1, 2] = 2 * drift[:, 0] / width, 2 * drift[:, 1] / height
    size = [len(times), *image.shape]
    grid = F.affine_grid(places, size, align_corners=False)
    moved = F.grid_sample(image.expand(size), grid, padding_mode="reflection", align_corners=False)
    noise = torch.stack(
        [torch.randn(image.shape, generator=seed_from(*seeds, time)) for time in times]
    )
    change = drift[:, 3, None, None, None] + _NOISE * noise.to(image)
    return (moved + (high - low) * change).clamp(low, high)


def _check_image(image: Tensor, domain: Domain) -> None:
    if image.dim() != 4 or not image.is_floating_point():
        shape = tuple(image.shape)
        text = (
            f"Domain {domain.name}: Expected images (n, channels, height, width) of floating point "
            f"numbers, to move them, found {image.dtype} of shape {shape}. Use another scenario."
        )
        raise BadInput("wrong_shape", text, found=shape)
