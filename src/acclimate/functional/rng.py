"""Random numbers that depend only on a seed and a place, not on what was drawn before.

A place is a purpose and its coordinates, such as ("order", epoch), or a counter. Code that draws in
this way can be stopped and resumed anywhere: there is no state of a generator to keep.
`generator_at` returns a generator of PyTorch; `uniform` returns an array, which is the same in
every version of NumPy. Committed weights and results depend on the numbers of both.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from acclimate.errors import InvalidConfig
from acclimate.functional.across import batch_rand

# Always float32; the wider name spares a cast after every operation with a Python number.
FloatArray = npt.NDArray[np.floating[Any]]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def seed_of(seed: int, purpose: str, *place: int) -> int:
    """Return a seed for one purpose at one place.

    >>> seed_of(0, "order", 3) == seed_of(0, "order", 3) != seed_of(0, "order", 4)
    True
    """
    text = "/".join([purpose, *map(str, (seed, *place))])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator_at(seed: int, purpose: str, *place: int) -> torch.Generator:
    """Return a generator on the CPU for one purpose at one place."""
    return torch.Generator().manual_seed(seed_of(seed, purpose, *place))


def copy_generator(generator: torch.Generator) -> torch.Generator:
    """Return a generator with the same state, so that the given one does not advance."""
    result = torch.Generator()
    result.set_state(generator.get_state())
    return result


def draw_uniforms(n: int, n_uniforms: int, generator: torch.Generator) -> Tensor:
    """Return random numbers in [0, 1), one row per sample, (n, n_uniforms), on the CPU."""
    if generator.device.type != "cpu":
        raise InvalidConfig(
            "out_of_range",
            f"Expected a generator on the CPU, found one on {generator.device}. Create it with "
            "torch.Generator(), so that results are the same on every device.",
            option="generator",
            found=str(generator.device),
        )
    return batch_rand(n, n_uniforms, generator)


def _mix(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))


def uniform(seed: int, index: npt.NDArray[np.int64], stream: int, n_draws: int) -> FloatArray:
    """Return numbers in [0, 1) of shape (len(index), n_draws), one row for each index.

    A counter is put through the finaliser of splitmix64, a 64-bit mixing function. `stream`
    separates draws made for different purposes from the same seed and index. A longer row begins
    with the shorter one.
    """
    key = _mix(np.array([seed % 2**64], dtype=np.uint64) + _STEP)
    key = _mix(key + np.array([stream], dtype=np.uint64) * _STEP)
    rows = _mix(key + index.astype(np.uint64) * _STEP)
    bits = _mix(rows[:, None] + np.arange(1, n_draws + 1, dtype=np.uint64) * _STEP)
    # 24 bits are what a float32 holds exactly, so 1.0 is never reached by rounding.
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


class Draws:
    """Returns the columns of a table of uniform draws one after the other.

    Every value has shape (n, 1, 1), to meet pixel grids of shape (n, height, width).
    """

    def __init__(self, table: FloatArray) -> None:
        self._table = table
        self._next = 0

    def between(self, low: float, high: float) -> FloatArray:
        """Return a value uniform in [low, high) for each image."""
        column = self._table[:, self._next, None, None]
        self._next += 1
        return np.float32(low) + np.float32(high - low) * column

    def chance(self, probability: float) -> FloatArray:
        """Return 1 with the given probability and 0 otherwise, for each image."""
        return (self.between(0.0, 1.0) < probability).astype(np.float32)
