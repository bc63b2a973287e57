"""Train on all domains but those held out: data, model, loop, checkpoints, the file in the end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acclimate.data import ImageStore
from acclimate.data.domains import DomainSet, load_domains
from acclimate.data.places import Progress
from acclimate.errors import BadInput
from acclimate.training.checkpoint import check_place, checkpoint_path
from acclimate.training.course import Course
from acclimate.training.domains.loop import Best, copy_weights, measure, run_steps
from acclimate.training.domains.model import build_model, full_name
from acclimate.training.domains.objective import VIEWS, DomainTrained
from acclimate.training.domains.output import (
    DomainResult,
    choose_best,
    last_path,
    read_checks,
    read_domain_result,
)
from acclimate.training.domains.settings import DomainSettings
from acclimate.training.loop import make_fabric, repeatable
from acclimate.training.output import log_path, write_zoo_file


def train_domains(
    settings: DomainSettings,
    out: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    device: str = "auto",
    save_every: int = 200,
    keep_last: bool = False,
    root: str | Path | None = None,
    data: DomainSet | None = None,
    progress: Progress | None = None,
) -> DomainResult:
    """Train on all domains but those held out, and write the weights that were best on them.

    A domain is split 80 : 20 by DomainBed's rule; the smaller parts of the training domains choose
    the checkpoint. The domains held out are not looked at. All draws depend on the seed and the
    place in the run alone: a run that was cut, and resumed, ends at the same weights to the last
    bit on the same machine.

    Args:
        settings: What to train, on what, and how.
        out: A safetensors file, which `load_trained` reads. A log and, while the run is under way,
            a checkpoint lie beside it.
        resume: Go on where an interrupted run stopped.
        force: Start anew, and overwrite.
        device: `auto`, `cpu`, `cuda` or `mps`.
        save_every: Steps between two checkpoints; there is also one at every check.
        keep_last: Also write the weights after the last step, as `NAME.last.safetensors`.
        root: Of all data; see `acclimate.data.data_root`.
        data: The set, if it is loaded already.
        progress: Called with the stage, the count done and the count to do.

    Raises:
        BadInput: The data is not there or not as it must be, there is no such domain, or the file
            is there and neither `resume` nor `force` is given.
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
    if data is None:
        data = load_domains(settings.data, root, size=settings.size, n=settings.images)
    names = choose_domains(data, settings)
    run = _identify(settings, data, names)
    if resume and out.exists() and not checkpoint_path(out).exists():
        return read_domain_result(out, run)
    train, held = split_domains(data, names, settings.trial_seed, progress)
    fabric = make_fabric(settings, device)
    hparams, gamma = settings.hparams, 0.0
    if settings.algorithm == "coral":
        gamma = hparams.gamma
    with repeatable(settings.seed):
        few, _ = next(train[names[0]].batches([torch.arange(2)]))
        model, head = build_model(settings, few.float() / 255, len(data.classes))
        trained = DomainTrained(model, head, gamma, hparams.dropout)
        trained.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        plain = torch.optim.Adam(
            trained.parameters(), hparams.lr, weight_decay=hparams.weight_decay
        )
        wrapped, optimizer = fabric.setup(trained, plain)
        course, best, checks = Course(fabric, out, run, trained, plain), Best(), []
        if tensors := course.begin(resume=resume, force=force, others=(last_path(out),)):
            best.restore(tensors)
            checks = read_checks(log_path(out), course.position.step)

        def keep() -> None:
            # Before the checkpoint: what it says was checked must be in the log.
            course.log(checks)
            course.keep(best.to_tensors())

        def check(figures: dict[str, Any]) -> None:
            validation = measure(fabric, model, held, progress)
            mean = sum(validation.values()) / len(validation)
            checks.append({**figures, "validation": validation, "mean": mean})
            if choose_best(checks) is checks[-1]:
                best.take(model)

        run_steps(
            *(fabric, wrapped, optimizer, train, settings, course.position),
            keep=keep,
            check=check,
            save_every=save_every,
            progress=progress,
        )
    chosen = choose_best(checks)
    result = DomainResult(
        path=out,
        step=chosen["step"],
        validation=chosen["validation"],
        checks=tuple(checks),
        minutes=round(course.position.seconds / 60, 2),
        unreadable={
            str(path): reason
            for name in names
            for path, reason in data.domains[name].unreadable.items()
        },
    )
    if fabric.is_global_zero:
        write = partial(_write, settings=settings, run=run, head=head, device=fabric.device)
        if keep_last:
            write(last_path(out), copy_weights(model), result, checks[-1])
        write(out, best.tensors, result, chosen)
    course.end()
    return result


def choose_domains(data: DomainSet, settings: DomainSettings) -> list[str]:
    """Return the domains that are trained on: all that are not held out.

    Raises:
        BadInput: A domain that is held out is not there; or too few would be left.
    """
    found = [data.find(name) for name in settings.held_out]
    held_out = set(found)
    if len(held_out) < len(found):
        raise BadInput(
            "duplicate",
            f"Expected every test domain once; {', '.join(settings.held_out)} are the same "
            f"domain(s): {', '.join(sorted(held_out))}. Remove the duplicates.",
            name=max(found, key=found.count),
        )
    names = [name for name in data.domains if name not in held_out]
    least = 2 if settings.algorithm == "coral" else 1
    if len(names) < least:
        hint = (
            "; CORAL compares domains with each other, use --algorithm erm for a single one"
            if names
            else ""
        )
        raise BadInput(
            "too_few_domains",
            f"Expected at least {least} domain(s) of {data.name} to train on, found {len(names)} "
            f"of {len(data.domains)} without {', '.join(sorted(held_out))}{hint}. Hold out fewer "
            "domains.",
            expected=least,
            found=len(names),
        )
    return names


def split_domains(
    data: DomainSet, names: Sequence[str], trial_seed: int, progress: Progress | None = None
) -> tuple[dict[str, ImageStore], dict[str, ImageStore]]:
    """Return what is trained on of each domain, and what is held out, without unreadable images.

    Every file is read once for that: a broken one must not end a run that is under way.

    Raises:
        BadInput: Nothing is left of a class to train on, or of a domain to choose by.
    """
    train, held = {}, {}
    for number, name in enumerate(names):
        if progress is not None:
            progress("look at images", number, len(names))
        domain = data.domains[name]
        good = set(domain.readable())
        keys = data.split(name, trial_seed)
        train[name], held[name] = (
            domain.select([key for key in own if key in good]) for own in keys
        )
        lost = set(domain.labels[keys[0]].tolist()) - set(train[name].labels.tolist())
        if lost or (keys[1] and not len(held[name])):
            what = (
                f'of the class "{data.classes[min(lost)]}"'
                if lost
                else "to select checkpoints with"
            )
            raise BadInput(
                "unreadable_images",
                f'{len(domain.unreadable)} images of the domain "{name}" cannot be read, and no '
                f"image is left {what}. Replace the files; acclimate data check lists them.",
                paths=tuple(domain.unreadable),
            )
    return train, held


def _identify(settings: DomainSettings, data: DomainSet, names: list[str]) -> dict[str, Any]:
    """Return what must be the same for a run to be gone on with."""
    return {
        "settings": settings.to_dict(),
        "data": {
            "name": data.name,
            "train": {name: data.domains[name].description for name in names},
            "held_out": [name for name in data.domains if name not in names],
        },
        "classes": list(data.classes),
        "statistics": "frozen",
        "augmentation": VIEWS.to_dict(),
    }


def _write(
    path: Path,
    tensors: dict[str, Tensor],
    result: DomainResult,
    chosen: dict[str, Any],
    *,
    settings: DomainSettings,
    run: dict[str, Any],
    head: str,
    device: torch.device,
) -> None:
    training = {
        **run,
        "command": settings.command,
        "head": head,
        "step": chosen["step"],
        "validation": chosen["validation"],
        "checks": list(result.checks),
        "minutes": result.minutes,
        "unreadable": result.unreadable,
    }
    write_zoo_file(path, tensors, full_name(settings.model), training, device)
