"""Common corruptions of 32×32 images, made locally.

Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019, https://arxiv.org/abs/1903.12261, with the constants of CIFAR-10-C.
The random draws of an image depend only on (seed, place in the sequence, corruption, severity).
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from acclimate.errors import BadInput, did_you_mean

SIZE = 32

Pixels = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float64]
Generators = Sequence[np.random.Generator]


@dataclass(frozen=True)
class Corruption:
    """A way to spoil images, with one constant for each severity from 1 to 5.

    `function` takes images in [0, 1] of shape (n, 32, 32, 3), the constant and one generator for
    each image, and returns images of the same shape that may leave [0, 1].
    """

    constants: tuple[Any, ...]
    function: Callable[[Values, Any, Generators], Values]


def apply(images: Pixels, name: str, severity: int = 5, seed: int = 0, start: int = 0) -> Pixels:
    """Return corrupted copies of the images.

    Args:
        images: RGB images of shape (n, 32, 32, 3).
        name: a key of `CORRUPTIONS`.
        severity: 1 (weak) to 5 (strong).
        seed: names the sequence of random draws.
        start: place in that sequence of the first image, so that a set corrupted in parts equals
            the set corrupted at once.

    Raises:
        BadInput: when the name, the severity or the kind of array is not one of those above.

    >>> dark = np.zeros((1, 32, 32, 3), dtype=np.uint8)
    >>> apply(dark, "brightness", severity=5)[0, 0, 0].tolist()
    [76, 76, 76]
    """
    if name not in CORRUPTIONS:
        raise BadInput(f'no corruption "{name}". {did_you_mean(name, CORRUPTIONS)}')
    if severity not in (1, 2, 3, 4, 5):
        raise BadInput(f"severity must be 1, 2, 3, 4 or 5, got {severity}.")
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        found = images.dtype if isinstance(images, np.ndarray) else type(images).__name__
        raise BadInput(f"images must be a uint8 array, got {found}. Scale [0, 1] by 255 first.")
    if images.shape[1:] != (SIZE, SIZE, 3):
        raise BadInput(
            f"images must have shape (n, {SIZE}, {SIZE}, 3), got {images.shape}. "
            "The constants are those for 32×32 images, colour last."
        )
    if start < 0:
        raise BadInput(f"start is a place in a sequence and must not be negative, got {start}.")
    corruption = CORRUPTIONS[name]
    generators = [_generator(seed, start + i, name, severity) for i in range(len(images))]
    x = corruption.function(images / 255.0, corruption.constants[severity - 1], generators)
    return (np.clip(x, 0, 1) * 255).astype(np.uint8)


def _generator(seed: int, index: int, name: str, severity: int) -> np.random.Generator:
    # Key and counter of Philox hold all four numbers side by side: no two images share a stream.
    # Explicit uint64, because NumPy would turn a list with a very large integer into floats.
    key = np.array([seed % 2**64, index], dtype=np.uint64)
    counter = np.array([0, 0, severity, zlib.crc32(name.encode())], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def _gaussian_noise(x: Values, scale: float, generators: Generators) -> Values:
    noise = [generator.normal(scale=scale, size=x.shape[1:]) for generator in generators]
    return x + np.reshape(noise, x.shape)


def _shot_noise(x: Values, n_photons: float, generators: Generators) -> Values:
    counts = [g.poisson(image * n_photons) for image, g in zip(x, generators, strict=True)]
    return np.reshape(counts, x.shape) / n_photons


def _impulse_noise(x: Values, amount: float, generators: Generators) -> Values:
    draws = np.reshape([generator.random(x.shape[1:]) for generator in generators], x.shape)
    return np.where(draws < amount, (draws < amount / 2).astype(np.float64), x)


def _defocus_blur(x: Values, lens: tuple[float, float], generators: Generators) -> Values:
    kernel = _disk(*lens)
    reach = len(kernel) // 2
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="reflect")
    blurred = np.zeros_like(x)
    # Smaller weights are lost when added in double precision.
    for row, column in np.argwhere(kernel > 1e-17):
        window = padded[:, row : row + SIZE, column : column + SIZE]
        blurred += kernel[row, column] * window
    return blurred


def _disk(radius: float, alias_sigma: float) -> npt.NDArray[np.float32]:
    """Return the blur kernel of a lens: a disk whose jagged edge is smoothed a little.

    In single precision, as in the published program, so that truncation to whole grey levels
    falls the same way.
    """
    reach = 8
    places = np.arange(-reach, reach + 1)
    disk = (places[:, None] ** 2 + places**2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    taps = np.exp(-(np.arange(-1, 2) ** 2) / (2 * alias_sigma**2))
    taps = (taps / taps.sum()).astype(np.float32)
    for _ in range(2):
        padded = np.pad(disk, ((1, 1), (0, 0)), mode="reflect")
        disk = (taps[0] * padded[:-2] + taps[1] * padded[1:-1] + taps[2] * padded[2:]).T
    return disk


def _fog(x: Values, fog: tuple[float, float], generators: Generators) -> Values:
    strength, decay = fog
    brightest: Values = x.max(axis=(1, 2, 3), keepdims=True)
    foggy = x + strength * _plasma(decay, generators)[..., None]
    return foggy * brightest / (brightest + strength)


def _plasma(decay: float, generators: Generators) -> Values:
    """Return a fractal cloud in [0, 1] for each generator, by the diamond-square rule.

    The map wraps around. Each round halves the distance between known points: first the centres
    of the squares they form, then the middles of the sides.
    """
    field = np.zeros((len(generators), SIZE, SIZE))
    step, wobble = SIZE, 100.0

    def near(total: Values) -> Values:
        # The published program multiplies by the wobble twice, so it shrinks by decay squared.
        draws = [generator.uniform(-wobble, wobble, total.shape[1:]) for generator in generators]
        return total / 4 + wobble * np.reshape(draws, total.shape)

    while step >= 2:
        half = step // 2
        corners = field[:, ::step, ::step]
        down = corners + np.roll(corners, -1, axis=1)
        field[:, half::step, half::step] = near(down + np.roll(down, -1, axis=2))
        centres = field[:, half::step, half::step]
        across = corners + np.roll(corners, -1, axis=2)
        field[:, ::step, half::step] = near(centres + np.roll(centres, 1, axis=1) + across)
        field[:, half::step, ::step] = near(centres + np.roll(centres, 1, axis=2) + down)
        step, wobble = half, wobble / decay
    lowest: Values = field.min(axis=(1, 2), keepdims=True)
    highest: Values = field.max(axis=(1, 2), keepdims=True)
    return (field - lowest) / (highest - lowest)


def _brightness(x: Values, amount: float, generators: Generators) -> Values:
    # In HSV all three channels are the value times something of hue and saturation alone, so
    # raising the value scales them; black has no hue and turns grey.
    value: Values = x.max(axis=-1, keepdims=True)
    raised: Values = np.clip(value + amount, 0, 1)
    share: Values = np.divide(x, value, out=np.ones_like(x), where=value > 0)
    return share * raised


def _contrast(x: Values, factor: float, generators: Generators) -> Values:
    mean: Values = x.mean(axis=(1, 2), keepdims=True)
    return (x - mean) * factor + mean


def _pixelate(x: Values, factor: float, generators: Generators) -> Values:
    small = int(SIZE * factor)
    box = Image.Resampling.BOX
    return _by_pillow(x, lambda image: image.resize((small, small), box).resize((SIZE, SIZE), box))


def _jpeg_compression(x: Values, quality: int, generators: Generators) -> Values:
    def squeeze(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _by_pillow(x, squeeze)


def _by_pillow(x: Values, change: Callable[[Image.Image], Image.Image]) -> Values:
    pixels = np.rint(x * 255).astype(np.uint8)
    changed = [np.asarray(change(Image.fromarray(image))) for image in pixels]
    return np.reshape(changed, x.shape) / 255.0


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption((0.04, 0.06, 0.08, 0.09, 0.10), _gaussian_noise),
    "shot_noise": Corruption((500, 250, 100, 75, 50), _shot_noise),
    "impulse_noise": Corruption((0.01, 0.02, 0.03, 0.05, 0.07), _impulse_noise),
    "defocus_blur": Corruption(
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)), _defocus_blur
    ),
    "fog": Corruption(((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)), _fog),
    "brightness": Corruption((0.05, 0.1, 0.15, 0.2, 0.3), _brightness),
    "contrast": Corruption((0.75, 0.5, 0.4, 0.3, 0.15), _contrast),
    "pixelate": Corruption((0.95, 0.9, 0.85, 0.75, 0.65), _pixelate),
    "jpeg_compression": Corruption((80, 65, 58, 50, 40), _jpeg_compression),
}
