"""Where a run stands: kept beside its output, so that it can be cut anywhere and gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.errors import ArtifactMismatch, BadInput
from acclimate.storage import read_file, write_file

_KIND = "training"
_WEIGHT, _STATE = "weight.", "optimizer."


@dataclass
class Position:
    """How far a run has come. Random draws need no more: they depend on the place alone.

    Attributes:
        epoch: The one that is under way, from 0.
        step: Steps of this epoch that are done.
        loss_sum: Sum of their losses.
        seconds: Time spent up to here.
        scaler: State of the loss scaling of 16-bit precision.
        penalty_sum: Sum of the penalties between domains, where there are any.
        n_summed: Number of steps in the sums, where they do not begin with an epoch.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    scaler: dict[str, Any] = field(default_factory=dict)
    penalty_sum: float = 0.0
    n_summed: int = 0


def checkpoint_path(out: Path) -> Path:
    """Return where the checkpoint of a run lies that writes to this file."""
    return out.with_name(f"{out.stem}.checkpoint.safetensors")


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
    tensors |= extra or {}
    write_file(path, _KIND, tensors, {"position": asdict(position), "run": dict(run)})


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
        lines = [
            f"{name}: {before!r} in the checkpoint, {after!r} now"
            for name, (before, after) in differences.items()
        ]
        raise ArtifactMismatch(
            "other_settings",
            f"{path} was written by a different run:\n  "
            + "\n  ".join(lines)
            + (
                "\nUse the same settings to resume, or start again with --force instead of "
                "--resume."
            ),
            differences=differences,
        )
    return tensors, Position(**card["position"])


def _flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
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
            # In the memory layout of the parameter, as the optimiser itself would have made it.
            tensor = torch.empty_like(parameter, requires_grad=False).copy_(tensor)
        optimizer.state[parameter][kind] = tensor


def check_place(out: Path, resume: bool, force: bool) -> None:
    """Refuse to overwrite, before anything is loaded.

    Raises:
        BadInput: There is a result or a checkpoint, and nobody said what to do with it.
    """
    if resume and force:
        raise BadInput(
            "conflicting_options",
            "Expected either --resume (continue) or --force (start again), found both. Remove one "
            "of them.",
            options=("resume", "force"),
        )
    if out.suffix != ".safetensors":
        raise BadInput(
            "wrong_suffix",
            f"Expected --out to end in .safetensors, found {out}.",
            path=out,
        )
    if not out.parent.is_dir():
        raise BadInput(
            "not_found",
            f"The folder {out.parent} of --out does not exist. Create it first.",
            path=out.parent,
        )
    if resume or force:
        return
    if checkpoint_path(out).exists():
        raise BadInput(
            "unfinished_run",
            f"{checkpoint_path(out)} is the checkpoint of an interrupted run. Pass --resume to "
            "continue it, or --force to start again.",
            path=checkpoint_path(out),
        )
    if out.exists():
        raise BadInput(
            "already_exists",
            f"{out} already exists. Pass another --out, or --force to overwrite it.",
            path=out,
        )
