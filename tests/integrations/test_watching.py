"""Numbers about what an adapted model does, and the libraries that they are logged to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import acclimate
from acclimate.errors import BadInput, MissingExtra
from acclimate.guard import Guard
from acclimate.integrations import watch
from acclimate.integrations.mlflow import log_to_mlflow
from acclimate.integrations.tensorboard import log_to_tensorboard
from acclimate.metrics import METRICS
from acclimate.testing.models import tiny_model
from tests.codes import raises
from tests.guarding import script_gain
from tests.integrations.common import guarded, images, prepare_tiny


class Log:
    """Keeps what was written."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        self.lines.append((step, dict(values)))

    def __getitem__(self, name: str) -> list[float]:
        return [values[name] for _, values in self.lines]


def failing() -> acclimate.Method:
    """Adapted with a guard that restores the source after 32 images."""
    model = tiny_model("batch_norm")
    artifact = script_gain(prepare_tiny(model), -0.2)
    return acclimate.adapt(
        model, "tent", artifact, guard=Guard(artifact, window=128, patience=32), lr=0.01
    )


def test_every_batch_is_written_with_the_metrics_of_the_package() -> None:
    adapted, log = acclimate.adapt(tiny_model("batch_norm"), "tent", lr=0.01), Log()
    handle = watch(adapted, log)
    for x in images():
        adapted(x)
    with adapted.paused():
        adapted(images(1)[0])
    handle.remove()
    adapted(images(1)[0])
    assert [step for step, _ in log.lines] == [0, 1, 2, 3]
    assert log["updates"] == [1, 1, 1, 0]
    assert log["samples"] == [16] * 4
    assert log["drift"] == sorted(log["drift"])
    assert log["drift"][0] > 0
    assert set(log.lines[0][1]) <= set(METRICS)
    assert "latency_ms" not in log.lines[0][1]


def test_counts_between_written_batches_are_summed_also_across_a_reset() -> None:
    adapted, log = acclimate.adapt(tiny_model("batch_norm"), "tent"), Log()
    watch(adapted, log, every=2, prefix="left/")
    for x in images(2):
        adapted(x)
    adapted.reset()
    for x in images(3):
        adapted(x)
    assert [step for step, _ in log.lines] == [1, 3]
    assert log["left/updates"] == [2, 2]
    assert log["left/samples"] == [32, 32]
    with raises("out_of_range", BadInput, option="every", found=0):
        watch(adapted, log, every=0)


def test_a_guard_adds_its_estimates_and_what_it_did() -> None:
    adapted, log = failing(), Log()
    watch(adapted, log)
    for x in images(6):
        adapted(x)
    report = adapted.report()
    assert sum(log["restored"]) == report.n_restored > 0
    assert log["by_source"][-1] == 1
    assert log["guard_rate"][-1] == report.rate < 1
    known = [values for _, values in log.lines if "source_accuracy" in values]
    assert known
    for values in known:
        for which in ("source", "adapted"):
            value = values[f"{which}_accuracy"]
            low, high = (values[f"{which}_accuracy_{end}"] for end in ("low", "high"))
            assert low <= value <= high


def test_tensorboard_gets_scalars_and_texts(tmp_path: Path) -> None:
    board = pytest.importorskip("torch.utils.tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    adapted = failing()
    with board.SummaryWriter(str(tmp_path)) as writer:
        log_to_tensorboard(adapted, writer, prefix="left/")
        for x in images(6):
            adapted(x)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("left/entropy")] == list(range(6))
    assert sum(event.value for event in events.Scalars("left/restored")) > 0
    tags = events.Tags()["tensors"]
    assert "left/setting/text_summary" in tags
    assert "left/guard/text_summary" in tags
    (setting,) = events.Tensors("left/setting/text_summary")
    assert b"| method | tent |" in setting.tensor_proto.string_val[0]
    (first, *_) = events.Tensors("left/guard/text_summary")
    assert b"states restored: 1" in first.tensor_proto.string_val[0]


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow with a folder for its runs, which it needs to be allowed."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    return pytest.importorskip("mlflow", reason="needs the extra mlflow")


def test_mlflow_gets_options_metrics_and_reports(mlflow: Any) -> None:
    adapted = failing()
    client = mlflow.MlflowClient()
    with mlflow.start_run() as active:
        log_to_mlflow(adapted, every=2)
        for x in images(6):
            adapted(x)
        run = client.get_run(active.info.run_id)
    assert run.data.params["method"] == "tent"
    assert run.data.params["option/lr"] == "0.01"
    assert run.data.params["guard/patience"] == "32"
    history = client.get_metric_history(run.info.run_id, "updates")
    assert [metric.step for metric in history] == [1, 3, 5]
    assert client.list_artifacts(run.info.run_id, "guard")
    other = client.create_run("0").info.run_id
    adapted, _ = guarded()
    plain = acclimate.adapt(adapted, "norm")
    handle = log_to_mlflow(plain, other, prefix="left/")
    plain(images(1)[0])
    handle.remove()
    assert client.get_run(other).data.metrics["left/samples"] == 16
    assert mlflow.active_run() is None


def test_without_mlflow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "mlflow", None)
    with raises("missing_extra", MissingExtra, package="mlflow") as caught:
        log_to_mlflow(acclimate.adapt(tiny_model("batch_norm"), "norm"))
    assert "acclimate[mlflow]" in str(caught.value)


def test_what_is_written_needs_no_labels_and_changes_no_prediction() -> None:
    plain = acclimate.adapt(tiny_model("batch_norm"), "tent")
    watched = acclimate.adapt(tiny_model("batch_norm"), "tent")
    watch(watched, Log())
    assert all(torch.equal(plain(x), watched(x)) for x in images())
