"""The demonstration: a task under several shifts, with several methods, measured."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acclimate.demo.run import DemoResult, run_demo
    from acclimate.demo.tasks import (
        TASKS,
        DemoSettings,
        SourceModel,
        Task,
        assign_models,
        fetch_data,
        get_task,
    )

__all__ = [
    "TASKS",
    "DemoResult",
    "DemoSettings",
    "SourceModel",
    "Task",
    "assign_models",
    "fetch_data",
    "get_task",
    "run_demo",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "run" if name in ("DemoResult", "run_demo") else "tasks"
    return getattr(importlib.import_module(f"acclimate.demo.{home}"), name)
