"""The files of a run: a `RunFolder` beside the output while it is under way, weights in the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate import errors, zoo
from acclimate.bench.provenance import describe_machine
from acclimate.bench.run_folder import CHECKPOINT, Checkpoint, Resume, RunFolder, check_start
from acclimate.errors import ArtifactMismatch, BadInput
from acclimate.storage import read_file, versions, write_file

_KIND = "training"
_RESULT = "zoo"  # so that zoo.load(name, weights=FILE) reads it
_WEIGHT, _STATE = "weight.", "optimizer."


@dataclass
class Position:
    """The position of a run. Random draws need nothing else, because they depend on it alone.

    Attributes:
        epoch: Number of the current epoch, from 0.
        step: Number of steps of this epoch that are done.
        loss_sum: Sum of their losses.
        penalty_sum: Sum of the penalties in these losses, before they are weighted.
        seconds: Time spent so far.
        scaler: State of the loss scaling of 16-bit precision.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    penalty_sum: float = 0.0
    seconds: float = 0.0
    scaler: dict[str, Any] = field(default_factory=dict)


def log_path(out: Path) -> Path:
    """Return where the figures of each epoch are written in the end, one JSON object per line."""
    return out.with_name(f"{out.stem}.log.jsonl")


def last_path(out: Path) -> Path:
    """Return where the weights after the last step are written, if they are kept."""
    return out.with_name(f"{out.stem}.last.safetensors")


def run_folder(out: Path) -> RunFolder:
    """Return the folder of the run that writes to this file; it exists until the run has ended."""
    return RunFolder(out.with_name(f"{out.stem}.run"), "Start again with --force.")


def has_checkpoint(run: RunFolder) -> bool:
    """Return whether an interrupted run can be resumed."""
    return (run.path / CHECKPOINT).is_file()


def check_output(out: Path, *, resume: bool, force: bool) -> None:
    """Refuse a path that cannot be an output, and to overwrite, before anything is loaded."""
    if out.suffix != ".safetensors":
        raise BadInput(
            "wrong_suffix", f"Expected --out to end in .safetensors, found {out}.", path=out
        )
    errors.check_output(out)
    check_start(resume, force)
    if resume or force:
        return
    if has_checkpoint(run := run_folder(out)):
        raise BadInput(
            "unfinished_run",
            f"{run.path} is the checkpoint of an interrupted run. Pass --resume to continue it, or "
            "--force to start again.",
            path=run.path,
        )
    errors.check_output(out, force)


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
    made = {
        "versions": {**versions(), "lightning-fabric": version("lightning-fabric")},
        "machine": {**describe_machine(device), "n_threads": torch.get_num_threads()},
        **training,
    }
    card = {"name": name, "architecture": architecture or name, "n_classes": n_classes}
    # Of a published file, of which there is none.
    card |= {"source_sha256": "", "address": "", "licence": "", "left_out": []}
    write_file(out, _RESULT, tensors, {**card, "training": made})


def read_done(out: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the file of a finished run records of the training; refuse another run's."""
    done: dict[str, Any] = read_file(out, _RESULT)[1].get("training", {})
    if any(done.get(name) != value for name, value in run.items()):
        raise BadInput(
            "other_run",
            f"{out} is the result of a different run ({done.get('command', 'not of training')}). "
            "Pass another --out, or --force to overwrite it.",
            path=out,
        )
    return done


def save_checkpoint(
    run: RunFolder,
    trained: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: Position,
    extra: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the state of a run; `load_checkpoint` returns `extra` under the same names.

    The state of the optimizer must be tensors by parameter, as for SGD and Adam.
    """
    tensors = {f"{_WEIGHT}{name}": tensor for name, tensor in trained.state_dict().items()}
    for name, parameter in trained.named_parameters():
        for kind, value in optimizer.state[parameter].items():
            if value is not None:
                tensors[f"{_STATE}{kind}.{name}"] = value
    tensors |= extra or {}
    place = Checkpoint(f"epoch {position.epoch + 1}", position.step, [asdict(position)])
    run.checkpoint(place, lambda path: write_file(path, _KIND, tensors, {}))


def load_checkpoint(
    resume: Resume, trained: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Position, dict[str, Tensor]]:
    """Restore the state of a run; return its position, and all tensors of the checkpoint."""
    if resume.checkpoint is None or resume.state is None:
        return Position(), {}
    tensors, _ = read_file(resume.state, _KIND)
    own = trained.state_dict()
    state = take_prefixed(tensors, _WEIGHT)
    if own.keys() != state.keys():
        raise ArtifactMismatch(
            "other_weights",
            "The tensors in the checkpoint are not those of the model: the code of the model was "
            "changed. Start again with --force instead of --resume.",
            differences=tuple(sorted(own.keys() ^ state.keys())),
        )
    trained.load_state_dict(state)
    parameters = dict(trained.named_parameters())
    for full, tensor in take_prefixed(tensors, _STATE).items():
        kind, _, name = full.partition(".")
        parameter = parameters[name]
        if tensor.shape == parameter.shape and kind != "step":
            # In the memory layout of the parameter, as the optimizer would have made it.
            tensor = torch.empty_like(parameter, requires_grad=False).copy_(tensor)
        optimizer.state[parameter][kind] = tensor
    return Position(**resume.checkpoint.sums[0]), tensors


def take_prefixed(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
