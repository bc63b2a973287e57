"""Random numbers that depend only on (seed, index, stream), never on the batch they are made in.

A counter is put through a 64-bit mixing function (the finaliser of splitmix64). Unlike the streams
of `numpy.random.Generator`, the result is the same in every version of NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# Always float32; the wider name spares a cast after every operation with a Python number.
FloatArray = npt.NDArray[np.floating[Any]]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))


def uniform(seed: int, index: npt.NDArray[np.int64], stream: int, n_draws: int) -> FloatArray:
    """Return numbers in [0, 1) of shape (len(index), n_draws), one row for each index.

    Args:
        seed: any integer; taken modulo 2**64.
        index: one counter for each row.
        stream: separates draws made for different purposes from the same seed and index.
        n_draws: numbers in a row; a longer row begins with the shorter one.
    """
    key = _mix(np.array([seed % 2**64], dtype=np.uint64) + _STEP)
    key = _mix(key + np.array([stream], dtype=np.uint64) * _STEP)
    rows = _mix(key + index.astype(np.uint64) * _STEP)
    bits = _mix(rows[:, None] + np.arange(1, n_draws + 1, dtype=np.uint64) * _STEP)
    # 24 bits are what a float32 holds exactly, so 1.0 is never reached by rounding.
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


class Draws:
    """Hands out the columns of a table of uniform draws, one value for each image.

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
