"""Log what an adapted model does to MLflow."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import Any

from torch.utils.hooks import RemovableHandle

from acclimate.integrations.watching import describe_setting, watch
from acclimate.methods.method import Method
from acclimate.zoo.torchvision_compat import import_library


def log_to_mlflow(
    adapted: Method, run_id: str | None = None, *, every: int = 1, prefix: str = ""
) -> RemovableHandle:
    """Log the numbers of `acclimate.integrations.watch` as metrics, and the options as parameters.

    When the guard has restored a state, its report is logged as `guard/<prefix><step>.txt`.

    Args:
        adapted: The adapted model.
        run_id: The run; by default the active one, or a new one.
        every: Log only every so many batches. Each time is one request to the tracking server.
        prefix: Put before each name, such as `"camera-1/"`.

    Returns:
        A handle; `handle.remove()` ends it. The run is not ended.

    Raises:
        MissingExtra: MLflow is not installed.
    """
    mlflow: Any = import_library("mlflow", "mlflow")
    entities: Any = importlib.import_module("mlflow.entities")
    client = mlflow.MlflowClient()
    run = run_id or (mlflow.active_run() or mlflow.start_run()).info.run_id
    params = [
        entities.Param(prefix + name, str(value))
        for name, value in describe_setting(adapted).items()
    ]
    client.log_batch(run, params=params)

    def write(step: int, values: Mapping[str, float]) -> None:
        now = time.time_ns() // 1_000_000
        metrics = [entities.Metric(name, value, now, step) for name, value in values.items()]
        client.log_batch(run, metrics=metrics)
        if values[f"{prefix}restored"] and adapted.guard is not None:
            client.log_text(run, str(adapted.report()), f"guard/{prefix}{step}.txt")

    return watch(adapted, write, every=every, prefix=prefix)
