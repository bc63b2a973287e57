"""Where bfloat16 is worth using, and a context that uses it there and nowhere else.

A processor without bfloat16 arithmetic imitates it, many times slower than float32. So the
question is not whether torch can compute in bfloat16, but whether the device does. The environment
variable ACCLIMATE_BFLOAT16 overrides the answer: `on` or `off`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

from acclimate.errors import InvalidConfig, did_you_mean

#: Overrides the detection: "on" or "off".
VARIABLE = "ACCLIMATE_BFLOAT16"

#: "exact": the arithmetic of the model's own precision. "fast": bfloat16 where the device has it.
SpeedName = Literal["exact", "fast"]


def check_speed(speed: str) -> None:
    """Refuse a speed that there is none of."""
    if speed not in get_args(SpeedName):
        hint = did_you_mean(speed, get_args(SpeedName))
        raise InvalidConfig(
            "unknown_name",
            f'expected speed "exact" or "fast", found {speed!r}. {hint}',
            kind="speed",
            name=speed,
            known=get_args(SpeedName),
        )


def has_fast_bfloat16(device: torch.device) -> bool:
    """Return whether the device multiplies bfloat16 itself, hence faster than float32.

    Where this cannot be asked (Apple's GPUs, other accelerators), the answer is no.

    Raises:
        InvalidConfig: ACCLIMATE_BFLOAT16 is set to something other than `on` or `off`.
    """
    forced = os.environ.get(VARIABLE)
    if forced:
        if forced not in ("on", "off"):
            raise InvalidConfig(
                "unknown_name",
                f'expected {VARIABLE} to be "on", "off" or not set, found "{forced}".',
                kind=VARIABLE,
                name=forced,
                known=("on", "off"),
            )
        return forced == "on"
    if device.type == "cpu":
        return _cpu_has_bfloat16()
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return False


@contextmanager
def fast_autocast(device: torch.device, enabled: bool) -> Iterator[None]:
    """Run the block's matrix products and convolutions in bfloat16 if that is fast.

    Without `enabled`, or where bfloat16 is not fast, nothing is changed: a block at speed "fast"
    is then the same, bit by bit, as at "exact".
    """
    if not (enabled and has_fast_bfloat16(device)):
        yield
        return
    with torch.autocast(device.type, torch.bfloat16):
        yield


def precision_used(dtype: torch.dtype, device: torch.device, enabled: bool) -> str:
    """Return the precision that `fast_autocast` gives to weights of some type, for a record.

    Doubles stay doubles: autocast leaves them alone.

    >>> precision_used(torch.float64, torch.device("cpu"), enabled=True)
    'float64'
    """
    lowered = enabled and dtype != torch.float64 and has_fast_bfloat16(device)
    return str(torch.bfloat16 if lowered else dtype).removeprefix("torch.")


def _cpu_has_bfloat16() -> bool:
    if platform.machine().lower() in ("aarch64", "arm64"):
        # Here torch's own question is about the instructions; on x86 it counts imitation as well.
        has_mkldnn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return bool(has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    # Not part of torch's stable interface: a version without them cannot be asked.
    questions = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, lambda: False)()) for name in questions)
