"""Log what an adapted model does to TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.hooks import RemovableHandle

from acclimate.integrations.watching import describe_setting, watch
from acclimate.methods.method import Method


def log_to_tensorboard(
    adapted: Method, writer: Any, *, every: int = 1, prefix: str = ""
) -> RemovableHandle:
    """Write the numbers of `acclimate.integrations.watch` as scalars, and restored states as text.

    Args:
        adapted: The adapted model.
        writer: A `torch.utils.tensorboard.SummaryWriter`, or any object with `add_scalar` and
            `add_text`. It is not closed.
        every: Write only every so many batches.
        prefix: Put before each name, such as `"camera-1/"`.

    Returns:
        A handle; `handle.remove()` ends it.
    """
    setting = describe_setting(adapted)
    rows = "".join(f"| {name} | {value} |\n" for name, value in setting.items())
    writer.add_text(f"{prefix}setting", f"| | |\n|---|---|\n{rows}", 0)

    def write(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        if values[f"{prefix}restored"] and adapted.guard is not None:
            writer.add_text(f"{prefix}guard", f"```\n{adapted.report()}\n```", step)

    return watch(adapted, write, every=every, prefix=prefix)
