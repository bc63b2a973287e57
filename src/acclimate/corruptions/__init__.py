"""The nineteen common corruptions, made locally, on batches of 8-bit images of any size.

Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019, https://arxiv.org/abs/1903.12261.

The random draws of an image depend only on (seed, place in the sequence, corruption, severity):
neither the batch it comes in nor the number of processes changes a pixel.

Some need SciPy or OpenCV: `pip install 'acclimate[corruptions]'`. Noise, motion blur, snow, frost,
fog, brightness, contrast, saturate, pixelate, JPEG, and defocus of small images need neither.
"""

from __future__ import annotations

from acclimate.corruptions.arrays import Pixels
from acclimate.corruptions.frost import describe_frost
from acclimate.corruptions.parallel import apply_in_parallel, open_pool
from acclimate.corruptions.registry import (
    BENCHMARK,
    CORRUPTIONS,
    HELD_OUT,
    Corruption,
    Family,
    apply,
)

__all__ = [
    "BENCHMARK",
    "CORRUPTIONS",
    "HELD_OUT",
    "Corruption",
    "Family",
    "Pixels",
    "apply",
    "apply_in_parallel",
    "open_pool",
    "provenance",
]


def provenance(name: str) -> str:
    """Return what a corruption is made from on this machine, to be kept with its results.

    >>> provenance("fog")
    'fog: computed'
    """
    return describe_frost() if name == "frost" else f"{name}: computed"
