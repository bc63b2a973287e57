"""The demonstration: a task under several shifts, with several methods, measured."""

from acclimate.demo.result import DemoResult
from acclimate.demo.run import run_demo
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
