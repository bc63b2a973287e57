"""Train a model for segmentation: data, model, loop, checkpoints, the file in the end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from acclimate.data import ImageStore, load
from acclimate.data.datasets import find_set
from acclimate.data.masks import MaskSet
from acclimate.data.places import Progress, data_root
from acclimate.errors import BadInput, UnsuitableModel
from acclimate.introspect import try_forward
from acclimate.training.checkpoint import check_place, checkpoint_path
from acclimate.training.course import Course
from acclimate.training.loop import make_fabric, repeatable, run_epochs
from acclimate.training.output import log_path, read_done, read_log, write_zoo_file
from acclimate.training.segmentation.looks import choose_pairs, measure
from acclimate.training.segmentation.objective import PHOTOMETRIC, DenseTrained
from acclimate.training.segmentation.settings import SegmentationSettings
from acclimate.zoo.readers import sha256_of
from acclimate.zoo.segmentation import build_dense
from acclimate.zoo.segmentation.catalog import TASK


@dataclass(frozen=True)
class SegmentationResult:
    """What a training run for segmentation gave.

    Attributes:
        path: Of the weights.
        sha256: Of that file.
        miou: Mean intersection over union on the validation images, in percent.
        ious: By class, in percent; None for a class that is in no validation image.
        losses: On the training images, the mean of each epoch.
        minutes: Time spent, over all calls.
        was_done: Whether the run had ended before, and nothing was done.
    """

    path: Path
    sha256: str
    miou: float
    ious: dict[str, float | None]
    losses: tuple[float, ...]
    minutes: float
    was_done: bool = False


def train_segmentation(
    settings: SegmentationSettings,
    out: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    device: str = "auto",
    save_every: int = 200,
    root: str | Path | None = None,
    progress: Progress | None = None,
) -> SegmentationResult:
    """Train a model for segmentation and write its weights after the last step.

    The order of the images and all draws depend on the seed and the place in the run alone: a run
    that was cut, and resumed, ends at the same weights to the last bit on the same machine. Every
    mask is looked at before the first step.

    Args:
        settings: What to train, on what, and how.
        out: A safetensors file, which `acclimate.zoo.segmentation.load_dense` reads. A log and,
            while the run is under way, a checkpoint lie beside it.
        resume: Go on where an interrupted run stopped.
        force: Start anew, and overwrite.
        device: `auto`, `cpu`, `cuda` or `mps`.
        save_every: Steps between two checkpoints; there is also one at every epoch's end.
        root: Of all data; see `acclimate.data.data_root`.
        progress: Called with the stage, the count done and the count to do.

    Raises:
        BadInput: The data is not there or not as it must be, or the file is there and neither
            `resume` nor `force` is given.
        InvalidConfig: The loss became infinite.
        UnsuitableModel: The model does not give a logit a class and pixel.
        ArtifactMismatch: What is there to be resumed is of another run.
        MissingExtra: lightning-fabric, or the library of the model, is not installed.
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
    _check_splits(settings.data, root)
    form: dict[str, Any] = {"size": settings.size, "ignore_label": settings.ignore_label}
    data = load(settings.data, "train", root, n=settings.images, **form)
    held = load(settings.data, "val", root, **form)
    run = _identify(settings, data, held)
    if resume and out.exists() and not checkpoint_path(out).exists():
        return _read_result(out, run)
    for images in (data, held):
        images.verify(progress)
    fabric = make_fabric(settings, device)
    with repeatable(settings.seed):
        model = _build(settings, data)
        few, _ = next(data.batches([torch.arange(1)]))
        trained = DenseTrained(model, settings, (few.shape[2], few.shape[3]))
        trained.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        plain = torch.optim.AdamW(
            trained.parameters(), settings.lr, weight_decay=settings.weight_decay
        )
        wrapped, optimizer = fabric.setup(trained, plain)
        course = Course(fabric, out, run, trained, plain)
        is_going_on = bool(course.begin(resume=resume, force=force))
        log = read_log(log_path(out), course.position.epoch) if is_going_on else []

        def begin(epoch: int) -> None:
            if settings.isw and epoch >= settings.isw_warmup_epochs:
                choose_pairs(fabric, trained, data, settings, progress)

        def note(figures: dict[str, Any]) -> None:
            del figures["lr"]  # which follows from the settings
            is_last = figures["epoch"] == settings.epochs
            if is_last or figures["epoch"] % settings.check_every == 0:
                figures |= _name_ious(measure(fabric, model, held, progress), held)
            log.append(figures)
            course.log(log)

        run_epochs(
            *(fabric, wrapped, optimizer, data, settings, course.position),
            rate_at=lambda step, n_steps: settings.rate(step, settings.epochs * n_steps),
            begin=begin,
            keep=course.keep,
            log=note,
            save_every=save_every,
            progress=progress,
        )
    if fabric.is_global_zero:
        training = {
            **run,
            "command": settings.command,
            "miou": log[-1]["miou"],
            "ious": log[-1]["ious"],
            "loss": [figures["loss"] for figures in log],
            "minutes": round(course.position.seconds / 60, 2),
        }
        write_zoo_file(out, model.state_dict(), settings.model, training, fabric.device, TASK)
    course.end()
    return _read_result(out, run, was_done=False)


def _check_splits(name: str, root: str | Path | None) -> None:
    """Refuse a folder of one's own that has not both splits, and say how to make them."""
    entry, path = find_set(name)
    if not isinstance(entry, MaskSet) or not entry.is_own:
        return
    base = entry.base(data_root(root), path)
    there = entry.layout.list_splits(base, ())
    if {"train", "val"} <= set(there):
        return
    raise BadInput(
        "wrong_layout",
        f"Expected the splits train and val in {base}, each with images and masks (val is used "
        f"for validation), found {', '.join(there) or 'no splits'}. Put the training pairs into "
        f"{base / 'train'}, and some others, such as a tenth of all, into "
        f"{base / 'val' / 'images'} and {base / 'val' / 'masks'}.",
        path=base,
    )


def _identify(settings: SegmentationSettings, data: ImageStore, held: ImageStore) -> dict[str, Any]:
    """Return what must be the same for a run to be gone on with."""
    return {
        "task": TASK,
        "settings": settings.to_dict(),
        "whitening": settings.isw,
        "data": data.description,
        "validation": held.description,
        "classes": list(data.classes),
        "photometric": PHOTOMETRIC.to_dict(),
    }


def _build(settings: SegmentationSettings, data: ImageStore) -> nn.Module:
    """Return the model with its first weights, when it gives a logit a class and pixel."""
    n_classes = len(data.classes)
    model = build_dense(
        settings.model, n_classes, pretrained=settings.pretrained, whitening=settings.isw
    )
    # Functions may return what was used before, in evaluation mode or partly frozen.
    model.requires_grad_(True).train()
    x, _ = next(data.batches([torch.arange(min(2, len(data)))]))
    logits = try_forward(model, x.float() / 255)
    shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if not isinstance(shape, tuple) or len(shape) != 4 or shape[:2] != (len(x), n_classes):
        raise UnsuitableModel(
            "wrong_logits",
            f"Expected {settings.model} to return logits of shape ({len(x)}, {n_classes}, height, "
            f"width) for {len(x)} images of {n_classes} classes, found {shape}. Pass a model with "
            "one logit per class and pixel.",
            found=shape,
        )
    return model


def _name_ious(ious: torch.Tensor, held: ImageStore) -> dict[str, Any]:
    values = [round(100 * value, 4) for value in ious.tolist()]
    named = {
        name: None if math.isnan(value) else value
        for name, value in zip(held.classes, values, strict=True)
    }
    found = [value for value in named.values() if value is not None]
    return {"miou": round(sum(found) / len(found), 4), "ious": named}


def _read_result(out: Path, run: dict[str, Any], was_done: bool = True) -> SegmentationResult:
    """Return the result of this very run, which has ended; `BadInput` if it is another's."""
    done = read_done(out, run)
    return SegmentationResult(
        path=out,
        sha256=sha256_of(out),
        miou=done["miou"],
        ious=done["ious"],
        losses=tuple(done["loss"]),
        minutes=done["minutes"],
        was_done=was_done,
    )
