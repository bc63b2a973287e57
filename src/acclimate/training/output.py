"""What a run leaves: a log, and a file of weights that says how they came about."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate import zoo
from acclimate.errors import BadInput
from acclimate.storage import read_file, versions, write_atomically, write_file
from acclimate.training.settings import TrainSettings
from acclimate.zoo.external import NormalizedModel

_KIND = "zoo"  # so that zoo.load(name, weights=FILE) reads it


@dataclass(frozen=True)
class TrainResult:
    """What a training run gave.

    Attributes:
        path: Of the weights.
        error: On the test split in percent; None if there is none.
        minutes: Time spent, over all calls.
        losses: On the training images, the mean of each epoch.
        was_done: Whether the run had ended before, and nothing was done.
    """

    path: Path
    error: float | None
    minutes: float
    losses: tuple[float, ...]
    was_done: bool = False


def log_path(out: Path) -> Path:
    """Return where the figures of each epoch are written, one JSON object a line."""
    return out.with_name(f"{out.stem}.log.jsonl")


def read_log(path: Path, n_epochs: int) -> list[dict[str, Any]]:
    """Return the figures of the first epochs, as many as are there."""
    if not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [figures for figures in lines if figures.get("epoch", n_epochs + 1) <= n_epochs]


def write_log(path: Path, log: list[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    write_atomically(path, "".join(json.dumps(figures) + "\n" for figures in log).encode())


def write_weights(
    out: Path,
    model: nn.Module,
    settings: TrainSettings,
    run: Mapping[str, Any],
    figures: Mapping[str, Any],
    device: torch.device,
) -> None:
    """Write the file in the end: weights by our names, and a card.

    Args:
        out: Where.
        model: Trained.
        settings: Of the run.
        run: What run it was: settings, data, classes.
        figures: What came out.
        device: That computed it.
    """
    inner = model.model if isinstance(model, NormalizedModel) else model
    training = {**run, "command": settings.command, **figures}
    write_zoo_file(out, inner.state_dict(), settings.model, training, device)


def write_zoo_file(
    out: Path,
    tensors: Mapping[str, Tensor],
    model: str,
    training: Mapping[str, Any],
    device: torch.device,
    architecture: str | None = None,
) -> None:
    """Write weights that `zoo.load` reads, with a card that says how they came about.

    Args:
        out: Where.
        tensors: By our names, without what wraps models of libraries.
        model: Its name in the zoo, or one with a colon.
        training: What is told of the training; it has a list of `classes`.
        device: That computed it.
        architecture: What kind of model it is, if it is none of the zoo's classifiers.
    """
    name, n_classes = model, len(training["classes"])
    if architecture is None and ":" not in name and name != "builtin":
        spec = zoo.get_spec(name, n_classes)
        name, architecture = spec.name, spec.architecture
    card = {
        "name": name,
        "architecture": architecture or name,
        "n_classes": n_classes,
        "source_sha256": "",  # of a published file: there is none
        "address": "",
        "licence": "",
        "left_out": [],
        "training": {
            "versions": {**versions(), "lightning-fabric": version("lightning-fabric")},
            "machine": _describe_machine(device),
            **training,
        },
    }
    write_file(out, _KIND, tensors, card)


def read_done(out: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the file of this very run, which has ended, tells of the training.

    Raises:
        BadInput: The file is the result of another run.
    """
    _, card = read_file(out, _KIND)
    done: dict[str, Any] = card.get("training", {})
    if any(done.get(name) != value for name, value in run.items()):
        raise BadInput(
            "other_run",
            f"{out} is the result of a different run ({done.get('command', 'not of training')}). "
            "Pass another --out, or --force to overwrite it.",
            path=out,
        )
    return done


def read_result(out: Path, run: Mapping[str, Any]) -> TrainResult:
    """Return the result of this very run, which has ended; `BadInput` if it is another's."""
    done = read_done(out, run)
    return TrainResult(
        path=out,
        error=done["test_error_percent"],
        minutes=done["minutes"],
        losses=tuple(done["loss"]),
        was_done=True,
    )


def _describe_machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    kind = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return f"{kind}, {torch.get_num_threads()} of {os.cpu_count()} cores"
