"""Train a source model: data, model, loop, checkpoints, and the file in the end."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate import zoo
from acclimate.data import ImageStore
from acclimate.data.places import Progress
from acclimate.errors import BadInput, UnsuitableModel
from acclimate.introspect import try_forward
from acclimate.training.checkpoint import check_place, checkpoint_path
from acclimate.training.course import Course
from acclimate.training.loop import (
    Trained,
    error_percent,
    make_fabric,
    make_optimizer,
    repeatable,
    run_epochs,
)
from acclimate.training.objectives import Objective, make_objective
from acclimate.training.output import (
    TrainResult,
    log_path,
    read_log,
    read_result,
    write_weights,
)
from acclimate.training.sets import load_sets
from acclimate.training.settings import TrainSettings, learning_rate


def train(
    settings: TrainSettings,
    out: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    device: str = "auto",
    save_every: int = 200,
    objective: Objective | None = None,
    root: str | Path | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Train a source model and write its weights.

    The order of the images and all draws depend on the seed and the place in the run alone: a run
    that was cut, and resumed, ends at the same weights to the last bit on the same machine.

    Args:
        settings: What to train, on what, and how.
        out: A safetensors file, which `zoo.load(name, weights=out)` reads. A log and, while the run
            is under way, a checkpoint lie beside it.
        resume: Go on where an interrupted run stopped.
        force: Start anew, and overwrite.
        device: `auto`, `cpu`, `cuda` or `mps`.
        save_every: Steps between two checkpoints; there is also one at every epoch's end.
        objective: What to minimise, if not what the settings say.
        root: Of all data; see `acclimate.data.data_root`.
        progress: Called with the stage, the count done and the count to do.

    Raises:
        BadInput: The data is not there, or the file is and neither `resume` nor `force` is given.
        InvalidConfig: The loss became infinite.
        ArtifactMismatch: What is there to be resumed is of another run.
        MissingExtra: lightning-fabric is not installed.
    """
    out = Path(out)
    check_place(out, resume, force)
    if save_every < 1:
        raise BadInput(
            "out_of_range",
            f"Expected save_every to be at least 1, found {save_every}.",
            option="save_every",
            found=save_every,
        )
    data, test = load_sets(settings, root)
    objective = make_objective(settings) if objective is None else objective
    run = _identify(settings, objective, data, test)
    if resume and out.exists() and not checkpoint_path(out).exists():
        return read_result(out, run)
    fabric = make_fabric(settings, device)
    with repeatable(settings.seed):
        model = _build(settings, data)
        objective.attach(model, _few(data))
        trained = Trained(model, objective)
        trained.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        plain = make_optimizer(trained, settings)
        wrapped, optimizer = fabric.setup(trained, plain)
        course = Course(fabric, out, run, trained, plain)
        is_going_on = bool(course.begin(resume=resume, force=force))
        log = read_log(log_path(out), course.position.epoch) if is_going_on else []

        def note(figures: dict[str, Any]) -> None:
            del figures["penalty"]  # there is none
            log.append({**figures, "loss": round(figures["loss"], 6)})
            course.log(log)

        run_epochs(
            *(fabric, wrapped, optimizer, data, settings, course.position),
            rate_at=partial(learning_rate, settings),
            remedy="Use a smaller --lr, or more --warmup-epochs.",
            keep=course.keep,
            log=note,
            save_every=save_every,
            progress=progress,
        )
        error = None if test is None else error_percent(fabric, model, test, progress)
    result = TrainResult(
        path=out,
        error=error,
        minutes=round(course.position.seconds / 60, 2),
        losses=tuple(figures["loss"] for figures in log),
    )
    if error is not None:
        course.log([*log, {"test_error_percent": round(error, 4)}])
    if fabric.is_global_zero:
        figures = {
            "test_error_percent": error,
            "minutes": result.minutes,
            "loss": list(result.losses),
        }
        objective.write(out, model, run)
        write_weights(out, model, settings, run, figures, fabric.device)
    course.end()
    return result


def _identify(
    settings: TrainSettings, objective: Objective, data: ImageStore, test: ImageStore | None
) -> dict[str, Any]:
    """Return what must be the same for a run to be gone on with."""
    return {
        "settings": settings.to_dict(),
        "objective": type(objective).__name__,
        "data": data.description,
        "test_data": None if test is None else test.description,
        "classes": list(data.classes),
    }


def _build(settings: TrainSettings, data: ImageStore) -> nn.Module:
    """Return the model with fresh weights and as many logits as there are classes."""
    is_function = ":" in settings.model and not settings.model.startswith(("timm:", "torchvision:"))
    model = zoo.build(settings.model, None if is_function else len(data.classes))
    # Functions may return what was used before, in evaluation mode or partly frozen.
    model.requires_grad_(True).train()
    x = _few(data)
    logits = try_forward(model, x.float() / 255)
    shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if shape != (len(x), len(data.classes)):
        raise UnsuitableModel(
            "wrong_logits",
            f"Expected {settings.model} to return logits of shape {(len(x), len(data.classes))} "
            f"for {len(x)} images of {len(data.classes)} classes, found {shape}. Pass a model "
            "with one logit per class.",
            found=shape,
        )
    return model


def _few(data: ImageStore) -> Tensor:
    x, _ = next(data.batches([torch.arange(min(2, len(data)))]))
    return x
