"""The corruptions by name, and the one function that applies them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from acclimate.corruptions import blur, digital, weather
from acclimate.corruptions.arrays import Generators, Pixels
from acclimate.corruptions.constants import CONSTANTS, choose_family, find_constant
from acclimate.corruptions.frost import warn_if_procedural
from acclimate.errors import BadInput, check_at_least, check_name, refuse_value

Family = Literal["auto", 32, 224]

#: Smaller images have no room for a neighbourhood.
_SMALLEST = 8
#: Pixels worked on at a time: their values fit into the cache of a processor.
_BLOCK = 2**15


@dataclass(frozen=True)
class Corruption:
    """A way to spoil images.

    Attributes:
        function: Takes images of shape (n, h, w, 3), a constant and one generator for each image,
            and returns new images.
        random: False when the generators are not used and none need be made.
        block: Pixels to be worked on at a time.
    """

    function: Callable[[Pixels, Any, Generators], Pixels]
    random: bool = True
    block: int = _BLOCK


#: All nineteen: the fifteen of the benchmark in the order of its table, then the held-out four.
CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(digital.gaussian_noise),
    "shot_noise": Corruption(digital.shot_noise),
    "impulse_noise": Corruption(digital.impulse_noise),
    "defocus_blur": Corruption(blur.defocus_blur, random=False),
    # Its cost is that of its steps, however many images take them together.
    "glass_blur": Corruption(blur.glass_blur, block=2**20),
    "motion_blur": Corruption(blur.motion_blur),
    "zoom_blur": Corruption(blur.zoom_blur, random=False),
    "snow": Corruption(weather.snow),
    "frost": Corruption(weather.frost),
    "fog": Corruption(weather.fog),
    "brightness": Corruption(digital.brightness, random=False),
    "contrast": Corruption(digital.contrast, random=False),
    "elastic_transform": Corruption(digital.elastic_transform),
    "pixelate": Corruption(digital.pixelate, random=False),
    "jpeg_compression": Corruption(digital.jpeg_compression, random=False),
    "speckle_noise": Corruption(digital.speckle_noise),
    "gaussian_blur": Corruption(blur.gaussian_blur, random=False),
    "spatter": Corruption(weather.spatter),
    "saturate": Corruption(digital.saturate, random=False),
}

#: Names in the order of the table of the benchmark.
BENCHMARK: tuple[str, ...] = tuple(CORRUPTIONS)[:15]
#: Names of those that are set aside for choosing hyper-parameters.
HELD_OUT: tuple[str, ...] = tuple(CORRUPTIONS)[15:]


def apply(
    images: Pixels,
    name: str,
    severity: int = 5,
    seed: int = 0,
    start: int = 0,
    family: Family = "auto",
    scale: bool = False,
) -> Pixels:
    """Return corrupted copies of the images.

    Args:
        images: RGB images of shape (n, height, width, 3).
        name: A key of `CORRUPTIONS`.
        severity: 1 (weak) to 5 (strong).
        seed: Names the sequence of random draws.
        start: Place in that sequence of the first image, so that a set corrupted in parts equals
            the set corrupted at once.
        family: Whose constants: 32 (CIFAR-10-C) or 224 (ImageNet-C). "auto" takes 32 for images
            whose shorter side is at most 48 pixels, 224 for others.
        scale: Whether to multiply all lengths in pixels by shorter side / 32 or / 224; whole radii
            are rounded and stay at least 1. False keeps them as published, at any size.

    Raises:
        BadInput: An argument is not one of those above.
        MissingExtra: The corruption needs SciPy or OpenCV, which are not installed.

    >>> dark = np.zeros((1, 32, 32, 3), dtype=np.uint8)
    >>> apply(dark, "brightness", severity=5)[0, 0, 0].tolist()
    [76, 76, 76]
    """
    check_request(images, name, severity, start, family)
    warn_if_procedural(name)
    height, width = images.shape[1:3]
    chosen = choose_family(height, width) if family == "auto" else family
    factor = min(height, width) / chosen if scale else 1.0
    constant = find_constant(name, severity, chosen, factor)
    corruption = CORRUPTIONS[name]
    n_together = max(1, corruption.block // (height * width))
    out = np.empty(images.shape, dtype=np.uint8)
    for first in range(0, len(images), n_together):
        block = np.ascontiguousarray(images[first : first + n_together])
        places = range(start + first, start + first + len(block)) if corruption.random else ()
        generators = [_generator(seed, place, name, severity) for place in places]
        out[first : first + len(block)] = corruption.function(block, constant, generators)
    return out


def check_request(images: Pixels, name: str, severity: int, start: int, family: Family) -> None:
    """Refuse what `apply` cannot do."""
    check_name(name, CORRUPTIONS, "corruption")
    if severity not in (1, 2, 3, 4, 5):
        refuse_value("severity", severity, "from 1 to 5")
    _check_images(images)
    check_at_least("start", start, 0)
    if family != "auto" and family not in CONSTANTS:
        known = ("auto", *CONSTANTS)
        text = f'Expected family to be "auto", 32 or 224, found {family!r}.'
        raise BadInput("unknown_name", text, kind="family", name=family, known=known)


def _check_images(images: object) -> None:
    found = str(images.dtype) if isinstance(images, np.ndarray) else type(images).__name__
    text = (
        f"Expected images as a uint8 array, found {found}. Multiply values in [0, 1] by 255 and "
        "convert them first."
    )
    if not isinstance(images, np.ndarray):
        raise BadInput("wrong_type", text, option="images", found=found)
    if images.dtype != np.uint8:
        raise BadInput("wrong_dtype", text, found=found)
    text = (
        "Expected images of shape (n, height, width, 3), channels last, with sides of at least "
        f"{_SMALLEST}, found {images.shape}."
    )
    if images.ndim != 4 or images.shape[3] != 3:
        raise BadInput("wrong_shape", text, found=images.shape)
    if min(images.shape[1:3]) < _SMALLEST:
        raise BadInput("image_too_small", text, found=images.shape[1:3])


def _generator(seed: int, index: int, name: str, severity: int) -> np.random.Generator:
    # Key and counter of Philox hold all four numbers side by side: no two images share a stream.
    # Explicit uint64, because NumPy would turn a list with a very large integer into floats.
    key = np.array([seed % 2**64, index], dtype=np.uint64)
    counter = np.array([0, 0, severity, zlib.crc32(name.encode())], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
