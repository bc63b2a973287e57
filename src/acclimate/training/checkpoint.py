"""The files of a run: a checkpoint and a log while it is under way, its weights in the end.

`RunFiles` is all that training knows of them. Every task uses it in the same way.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate import zoo
from acclimate.errors import ArtifactMismatch, BadInput
from acclimate.storage import read_file, versions, write_atomically, write_file

_KIND = "training"
_RESULT = "zoo"  # so that zoo.load(name, weights=FILE) reads it
_WEIGHT, _STATE = "weight.", "optimizer."


@dataclass
class Position:
    """How far a run has come. Random draws need no more: they depend on the place alone.

    Attributes:
        epoch: The one that is under way, from 0.
        step: Steps of this epoch that are done.
        loss_sum: Sum of their losses.
        penalty_sum: Sum of the penalties in these losses, before they are weighted.
        seconds: Time spent up to here.
        scaler: State of the loss scaling of 16-bit precision.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    penalty_sum: float = 0.0
    seconds: float = 0.0
    scaler: dict[str, Any] = field(default_factory=dict)


def checkpoint_path(out: Path) -> Path:
    """Return where the checkpoint of a run lies that writes to this file."""
    return out.with_name(f"{out.stem}.checkpoint.safetensors")


def log_path(out: Path) -> Path:
    """Return where the figures of each epoch are written, one JSON object per line."""
    return out.with_name(f"{out.stem}.log.jsonl")


def last_path(out: Path) -> Path:
    """Return where the weights after the last step are written, if they are kept."""
    return out.with_name(f"{out.stem}.last.safetensors")


class RunFiles:
    """The output of a run with its checkpoint and its log.

    Args:
        out: Where the weights are written in the end.

    Raises:
        BadInput: The path cannot be an output.
    """

    def __init__(self, out: Path) -> None:
        if out.suffix != ".safetensors":
            raise BadInput(
                "wrong_suffix", f"Expected --out to end in .safetensors, found {out}.", path=out
            )
        if not out.parent.is_dir():
            raise BadInput(
                "not_found",
                f"The folder {out.parent} of --out does not exist. Create it first.",
                path=out.parent,
            )
        self.out, self.checkpoint, self.log = out, checkpoint_path(out), log_path(out)

    def check(self, *, resume: bool, force: bool) -> None:
        """Refuse to overwrite, before anything is loaded."""
        if resume and force:
            raise BadInput(
                "conflicting_options",
                "Expected either --resume (continue) or --force (start again), found both. Remove "
                "one of them.",
                options=("resume", "force"),
            )
        if resume or force:
            return
        if self.checkpoint.exists():
            raise BadInput(
                "unfinished_run",
                f"{self.checkpoint} is the checkpoint of an interrupted run. Pass --resume to "
                "continue it, or --force to start again.",
                path=self.checkpoint,
            )
        if self.out.exists():
            raise BadInput(
                "already_exists",
                f"{self.out} already exists. Pass another --out, or --force to overwrite it.",
                path=self.out,
            )

    @property
    def is_done(self) -> bool:
        """Whether a run has ended here."""
        return self.out.exists() and not self.checkpoint.exists()

    def remove(self) -> None:
        """Remove all but the weights, so that a later call cannot resume from them."""
        for path in (self.checkpoint, self.log, last_path(self.out)):
            path.unlink(missing_ok=True)

    def read_log(self, n: int) -> list[dict[str, Any]]:
        """Return the figures of the first epochs."""
        if not self.log.is_file():
            return []
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines[:n]]

    def write_log(self, log: list[dict[str, Any]]) -> None:
        """Write one JSON object per line."""
        write_atomically(self.log, "".join(json.dumps(line) + "\n" for line in log).encode())

    def read_result(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the file of this very run, which has ended, records of the training.

        Raises:
            BadInput: The file is the result of another run.
        """
        _, card = read_file(self.out, _RESULT)
        done: dict[str, Any] = card.get("training", {})
        if any(done.get(name) != value for name, value in run.items()):
            raise BadInput(
                "other_run",
                f"{self.out} is the result of a different run "
                f"({done.get('command', 'not of training')}). Pass another --out, or --force to "
                "overwrite it.",
                path=self.out,
            )
        return done


def write_weights(
    out: Path,
    tensors: Mapping[str, Tensor],
    model: str,
    training: Mapping[str, Any],
    device: torch.device,
    architecture: str | None = None,
) -> None:
    """Write weights that `zoo.load` reads, with a card that records how they were made.

    Args:
        out: Where.
        tensors: By our names, without what wraps models of libraries.
        model: Its name in the zoo, or one with a colon.
        training: The run and its figures; it has a list of `classes`.
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
    write_file(out, _RESULT, tensors, card)


def _describe_machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    kind = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return f"{kind}, {torch.get_num_threads()} of {os.cpu_count()} cores"


def save_checkpoint(
    path: Path,
    trained: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: Position,
    run: Mapping[str, Any],
    extra: Mapping[str, Tensor] | None = None,
) -> None:
    """Write where a run stands, in one step.

    Args:
        path: Of the checkpoint.
        trained: All that is trained.
        optimizer: Its state is tensors for each parameter, as of SGD and Adam.
        position: How far the run has come.
        run: What run it is; `load_checkpoint` compares it.
        extra: What else is to be kept; `load_checkpoint` returns it under these names.
    """
    tensors = {f"{_WEIGHT}{name}": tensor for name, tensor in trained.state_dict().items()}
    for name, parameter in trained.named_parameters():
        for kind, value in optimizer.state[parameter].items():
            if value is not None:
                tensors[f"{_STATE}{kind}.{name}"] = value
    write_file(
        path, _KIND, {**tensors, **(extra or {})}, {"position": asdict(position), "run": dict(run)}
    )


def load_checkpoint(path: Path, run: Mapping[str, Any]) -> tuple[dict[str, Tensor], Position]:
    """Return the tensors of a checkpoint of this very run, and how far it had come.

    Raises:
        ArtifactMismatch: It is of a run with other settings, data or versions.
        CorruptFile: It is damaged.
    """
    tensors, card = read_file(path, _KIND)
    then, now = _flatten(card["run"]), _flatten(run)
    differences = {
        name: (then.get(name), now.get(name))
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    }
    if differences:
        lines = "".join(
            f"\n  {name}: {before!r} in the checkpoint, {after!r} now"
            for name, (before, after) in differences.items()
        )
        raise ArtifactMismatch(
            "other_settings",
            f"{path} was written by a different run:{lines}\nUse the same settings to resume, or "
            "start again with --force instead of --resume.",
            differences=differences,
        )
    return tensors, Position(**card["position"])


def _flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = value if isinstance(value, Mapping) else None
        flat |= {name: value} if inner is None else {f"{name}.{key}": inner[key] for key in inner}
    return flat


def restore(
    tensors: Mapping[str, Tensor], trained: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Put the tensors of a checkpoint back where they were."""
    own = trained.state_dict()
    state = {
        name.removeprefix(_WEIGHT): tensor
        for name, tensor in tensors.items()
        if name.startswith(_WEIGHT)
    }
    if own.keys() != state.keys():
        raise ArtifactMismatch(
            "other_weights",
            "The tensors in the checkpoint are not those of the model: the code of the model was "
            "changed. Start again with --force instead of --resume.",
            differences=tuple(sorted(own.keys() ^ state.keys())),
        )
    trained.load_state_dict(state)
    parameters = dict(trained.named_parameters())
    for full, tensor in tensors.items():
        if not full.startswith(_STATE):
            continue
        kind, _, name = full.removeprefix(_STATE).partition(".")
        parameter = parameters[name]
        if tensor.shape == parameter.shape and kind != "step":
            # In the memory layout of the parameter, as the optimizer itself would have made it.
            tensor = torch.empty_like(parameter, requires_grad=False).copy_(tensor)
        optimizer.state[parameter][kind] = tensor
