"""Training on all domains but those held out; the weights that were best on the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.errors import BadInput
from acclimate.functional.rng import generator_at
from acclimate.training.checkpoint import RunFiles, last_path, write_weights
from acclimate.training.domains.model import build_model, full_name
from acclimate.training.domains.objective import VIEWS, DomainObjective
from acclimate.training.results import DomainResult
from acclimate.training.sets import DomainSet, ImageStore, load_domains
from acclimate.training.settings import DomainSettings
from acclimate.training.trainer import (
    Progress,
    Task,
    Trained,
    error_percent,
    first_images,
    inner_weights,
)

_BEST = "best."
_CHUNK = 50  # steps whose files are listed at a time; what is cut is listed again


class DomainTask(Task[DomainResult]):
    """ERM or CORAL. An epoch is the time between two measurements on the validation splits.

    A domain is split 80 : 20 by DomainBed's rule; the smaller parts of the training domains choose
    the checkpoint. The domains held out are not looked at.

    Args:
        settings: Of the run.
        root: Of all data.
        data: The set, if it is loaded already.
        keep_last: Whether the weights after the last step are written, too.
    """

    settings: DomainSettings

    def __init__(
        self,
        settings: DomainSettings,
        root: str | Path | None,
        data: DomainSet | None = None,
        keep_last: bool = False,
    ) -> None:
        if data is None:
            data = load_domains(settings.data, root, size=settings.size, n=settings.images)
        self.settings, self.data, self.keep_last = settings, data, keep_last
        self.names = choose_domains(data, settings)
        self.n_epochs = -(-settings.steps // settings.check_every)
        if settings.objective == "coral":
            self.remedy = "Use a smaller --lr, or a smaller --gamma."
        self._best: dict[str, Tensor] = {}
        self._highest = -1.0

    def identify(self) -> dict[str, Any]:
        domains = self.data.domains
        return {
            "settings": self.settings.to_dict(),
            "data": {
                "name": self.data.name,
                "train": {name: domains[name].description for name in self.names},
                "held_out": [name for name in domains if name not in self.names],
            },
            "classes": list(self.data.classes),
            "statistics": "frozen",
            "augmentation": VIEWS.to_dict(),
        }

    def verify(self, progress: Progress | None) -> None:
        seed = self.settings.trial_seed
        self._train, self._held = split_domains(self.data, self.names, seed, progress)

    def build(self) -> Trained:
        hparams = self.settings.hparams
        x = first_images(self._train[self.names[0]]).float() / 255
        model, head = build_model(self.settings, x, len(self.data.classes))
        gamma = hparams.gamma if self.settings.objective == "coral" else 0.0
        objective = DomainObjective(head, gamma, hparams.dropout)
        return Trained(model, objective, freezes_statistics=True)

    def make_optimizer(self) -> torch.optim.Optimizer:
        hparams, parameters = self.settings.hparams, self.trained.parameters()
        return torch.optim.Adam(parameters, hparams.lr, weight_decay=hparams.weight_decay)

    def count_steps(self, epoch: int) -> int:
        every = self.settings.check_every
        return min(every, self.settings.steps - epoch * every)

    def batches(
        self, epoch: int, start: int, rank: int, n_ranks: int
    ) -> Iterable[tuple[list[Tensor], list[Tensor]]]:
        first = epoch * self.settings.check_every
        steps = range(first + start, first + self.count_steps(epoch))
        n = self.settings.hparams.batch_size
        return minibatches(self._train, n, self.settings.seed, steps, rank, n_ranks)

    def place(self, epoch: int, step: int) -> tuple[int, ...]:
        return (epoch * self.settings.check_every + step,)

    def end(
        self, fabric: Any, figures: dict[str, Any], progress: Progress | None
    ) -> dict[str, Any]:
        model = self.trained.model
        validation = measure(fabric, model, self._held, progress)
        mean = sum(validation.values()) / len(validation)
        if mean > self._highest:  # of equals, the first
            self._highest, self._best = mean, inner_weights(model)
        means = {name: round(figures[name], 6) for name in ("loss", "penalty")}
        line = {"step": figures["step"], **means, "minutes": figures["minutes"]}
        return {**line, "validation": validation, "mean": mean}

    @property
    def extra(self) -> dict[str, Tensor]:
        return {f"{_BEST}{name}": tensor for name, tensor in self._best.items()}

    def restore(self, tensors: Mapping[str, Tensor], log: list[dict[str, Any]]) -> None:
        self._best = {
            name.removeprefix(_BEST): tensor
            for name, tensor in tensors.items()
            if name.startswith(_BEST)
        }
        self._highest = max((line["mean"] for line in log), default=-1.0)

    def finish(
        self, fabric: Any, log: list[dict[str, Any]], progress: Progress | None
    ) -> dict[str, Any]:
        return {
            "head": self.trained.objective.head,
            **_state(max(log, key=lambda line: line["mean"])),
            "checks": log,
            "unreadable": {
                str(path): reason
                for name in self.names
                for path, reason in self.data.domains[name].unreadable.items()
            },
        }

    def write(self, files: RunFiles, card: dict[str, Any], device: torch.device) -> None:
        name = full_name(self.settings.model)
        if self.keep_last:
            last = {**card, **_state(card["checks"][-1])}
            weights = inner_weights(self.trained.model)
            write_weights(last_path(files.out), weights, name, last, device)
        write_weights(files.out, self._best, name, card, device)

    def read_result(self, path: Path, done: dict[str, Any], was_done: bool) -> DomainResult:
        return DomainResult(
            path=path,
            step=done["step"],
            validation=done["validation"],
            checks=tuple(done["checks"]),
            minutes=done["minutes"],
            unreadable=done["unreadable"],
            was_done=was_done,
        )


def _state(check: Mapping[str, Any]) -> dict[str, Any]:
    return {"step": check["step"], "validation": check["validation"]}


def measure(
    fabric: Any, model: nn.Module, held: Mapping[str, ImageStore], progress: Progress | None = None
) -> dict[str, float]:
    """Return the accuracy on each part that is held out, in percent, in full precision."""
    found = {}
    for number, (name, domain) in enumerate(held.items()):
        if progress is not None:
            progress("validate", number, len(held))
        found[name] = round(100 - error_percent(fabric, model, domain), 4)
    return found


def pick_images(n: int, batch_size: int, seed: int, step: int, domain: str) -> Tensor:
    """Return which images of a domain a step takes: drawn with replacement, as DomainBed does.

    Args:
        n: Number of images of the domain to train on.
        batch_size: How many are taken.
        seed: Of the run.
        step: From 0.
        domain: Its name; what one domain gives does not depend on which others there are.
    """
    generator = generator_at(seed, f"domain {domain}", step)
    return torch.randint(n, (batch_size,), generator=generator)


def minibatches(
    train: Mapping[str, ImageStore],
    batch_size: int,
    seed: int,
    steps: range,
    rank: int = 0,
    n_ranks: int = 1,
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Yield images and labels of every domain for each step, as many of each domain.

    Args:
        train: What each domain is trained on.
        batch_size: Images of a domain in a step, on all devices together.
        seed: Of the run.
        steps: Numbers of the steps.
        rank: Of this device.
        n_ranks: Number of devices.
    """
    for start in range(steps.start, steps.stop, _CHUNK):
        numbers = range(start, min(start + _CHUNK, steps.stop))
        readers = []
        for name, domain in train.items():
            picks = [pick_images(len(domain), batch_size, seed, step, name) for step in numbers]
            readers.append(domain.batches([own[rank::n_ranks] for own in picks]))
        for batches in zip(*readers, strict=True):
            yield [x for x, _ in batches], [y for _, y in batches]


def choose_domains(data: DomainSet, settings: DomainSettings) -> list[str]:
    """Return the domains that are trained on: all that are not held out.

    Raises:
        BadInput: A domain that is held out is not there; or too few would be left.
    """
    found = [data.find(name) for name in settings.held_out]
    held_out = ", ".join(sorted(set(found)))
    if len(set(found)) < len(found):
        raise BadInput(
            "duplicate",
            f"Expected every test domain once; {', '.join(settings.held_out)} are the same "
            f"domain(s): {held_out}. Remove the duplicates.",
            name=max(found, key=found.count),
        )
    names = [name for name in data.domains if name not in found]
    least = 2 if settings.objective == "coral" else 1
    if len(names) < least:
        hint = " CORAL compares domains; with one, use --objective erm." if names else ""
        raise BadInput(
            "too_few_domains",
            f"Expected at least {least} domain(s) of {data.name} to train on, found {len(names)} "
            f"of {len(data.domains)} without {held_out}. Hold out fewer domains.{hint}",
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
    train: dict[str, ImageStore] = {}
    held: dict[str, ImageStore] = {}
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
            part = f'of the class "{data.classes[min(lost)]}"' if lost else "to select checkpoints"
            raise BadInput(
                "unreadable_images",
                f'{len(domain.unreadable)} images of the domain "{name}" cannot be read, and no '
                f"image is left {part}. Replace the files; acclimate data check lists them.",
                paths=tuple(domain.unreadable),
            )
    return train, held
