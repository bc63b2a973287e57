"""Numbers as JSON types: no arrays, no tensors, and null for numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor


def to_plain(value: Any) -> Any:
    """Convert a value to JSON types, with any nesting; keys become strings."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return to_plain(value.tolist())
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_float(value: float | None) -> float:
    """Return the number for a result of `to_plain`; null becomes NaN."""
    return math.nan if value is None else float(value)
