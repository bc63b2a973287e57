"""Numbers as JSON has them: no arrays, no tensors, and null for what is not a finite number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor


def to_plain(value: Any) -> Any:
    """Return a value as JSON types, inside any nesting; keys become texts."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return to_plain(value.tolist())
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_float(value: float | None) -> float:
    """Return a number that `to_plain` wrote: null is not a number."""
    return math.nan if value is None else float(value)
