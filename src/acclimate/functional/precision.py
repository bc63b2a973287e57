"""Detect whether bfloat16 is fast on a device, and use it only there.

A processor without bfloat16 arithmetic emulates it, many times slower than float32. What matters is
therefore whether the device computes in bfloat16, not whether torch can. The environment variable
ACCLIMATE_BFLOAT16 overrides the detection: `on` or `off`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from acclimate.errors import InvalidConfig, check_name

#: Overrides the detection: "on" or "off".
VARIABLE = "ACCLIMATE_BFLOAT16"

#: "exact": the model's own precision. "fast": bfloat16 if the device supports it in hardware.
SpeedName = Literal["exact", "fast"]


def check_speed(speed: str) -> None:
    """Refuse an unknown speed."""
    check_name(speed, get_args(SpeedName), "speed", InvalidConfig)


def has_fast_bfloat16(device: torch.device) -> bool:
    """Return whether the device supports bfloat16 in hardware, so that it is fast.

    Where this cannot be detected (Apple's GPUs, other accelerators), it returns False.
    """
    forced = os.environ.get(VARIABLE)
    if forced:
        check_name(forced, ("on", "off"), VARIABLE, InvalidConfig)
        return forced == "on"
    if device.type == "cpu":
        return _cpu_has_bfloat16()
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return False


@contextmanager
def fast_autocast(device: torch.device, enabled: bool) -> Iterator[None]:
    """Run the matrix products and convolutions inside in bfloat16 if that is fast.

    If `enabled` is False or bfloat16 is not fast, nothing changes: the result of speed "fast" then
    equals that of "exact" bit for bit.
    """
    if not (enabled and has_fast_bfloat16(device)):
        yield
        return
    with torch.autocast(device.type, torch.bfloat16):
        yield


def at_least_float32(values: Tensor) -> Tensor:
    """Return values in float32 if they are in half precision."""
    is_half = values.is_floating_point() and values.element_size() < 4
    return values.float() if is_half else values


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype for sums: float64 if the device supports it."""
    return torch.float32 if device.type == "mps" else torch.float64


def precision_used(dtype: torch.dtype, device: torch.device, enabled: bool) -> str:
    """Return the precision in which `fast_autocast` computes with weights of a dtype.

    Autocast does not change double precision.

    >>> precision_used(torch.float64, torch.device("cpu"), enabled=True)
    'float64'
    """
    lowered = enabled and dtype != torch.float64 and has_fast_bfloat16(device)
    return str(torch.bfloat16 if lowered else dtype).removeprefix("torch.")


def _cpu_has_bfloat16() -> bool:
    if platform.machine().lower() in ("aarch64", "arm64"):
        # On ARM this function reports hardware support; on x86 it includes emulation.
        has_mkldnn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return bool(has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    # These are not part of torch's stable interface; without them, assume no support.
    functions = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, lambda: False)()) for name in functions)
