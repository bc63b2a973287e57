"""Training on all domains except those held out, as in DomainBed: ERM and CORAL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate import zoo
from acclimate.data import ImageStore
from acclimate.data.domains import DomainSet, load_domains
from acclimate.errors import BadInput, UnsuitableModel
from acclimate.forward import get_logits
from acclimate.functional.precision import at_least_float32
from acclimate.functional.rng import generator_at
from acclimate.functional.views import ColorJitter, Crop, Flip, Grayscale, Views
from acclimate.introspect import get_head, inspect_model
from acclimate.progress import Progress
from acclimate.training.checkpoint import last_path, take_prefixed, write_weights
from acclimate.training.objectives import Objective
from acclimate.training.settings import DomainResult, DomainSettings
from acclimate.training.trainer import Task, Trained, first_images
from acclimate.zoo.external import NormalizedModel
from acclimate.zoo.named import is_own, load_named, replace_head
from acclimate.zoo.torchvision_compat import import_torchvision

_BEST = "best."
_CHUNK = 50  # steps whose images are drawn and requested at a time

#: The augmentation of DomainBed, which crops the image before it is resized. Here the image is
#: resized first, which makes no difference for square images.
VIEWS = Views(
    (Crop(scale=(0.7, 1.0)), Flip(0.5), ColorJitter(0.3, 0.3, 0.3, 0.3), Grayscale(0.1)),
)

#: The models of DomainBed are those of torchvision, with its first weights, which are no longer its
#: default.
DOMAINBED_MODELS = ("resnet18", "resnet50")
_DOMAINBED_WEIGHTS = "IMAGENET1K_V1"


class DomainTask(Task[DomainResult]):
    """ERM or CORAL. An epoch is the time between two measurements on the validation splits.

    A domain is split 80 : 20 by DomainBed's rule. The checkpoint is chosen on the smaller parts of
    the training domains; the domains that are held out are not used.
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

    def verify(self) -> None:
        """Split the domains, and read every file, so that a broken one cannot end a run later."""
        seed = self.settings.trial_seed
        self._train, self._held = split_domains(self.data, self.names, seed, self.progress)

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

    def batches(self, epoch: int, start: int) -> Iterable[tuple[list[Tensor], list[Tensor]]]:
        first = epoch * self.settings.check_every
        steps = range(first + start, first + self.count_steps(epoch))
        n = self.settings.hparams.batch_size
        return minibatches(self._train, n, self.settings.seed, steps, self.share)

    def place(self, epoch: int, step: int) -> tuple[int, ...]:
        return (epoch * self.settings.check_every + step,)

    def measure(self) -> dict[str, float]:
        """Return the accuracy on the held-out part of each training domain, in percent."""
        found = {}
        for number, (name, domain) in enumerate(self._held.items()):
            self.report("validate", number, len(self._held))
            found[name] = round(100 - self.error_percent(domain), 4)
        return found

    def end(self, figures: dict[str, Any]) -> dict[str, Any]:
        validation = self.measure()
        mean = sum(validation.values()) / len(validation)
        if mean > self._highest:  # the first of equals
            self._highest, self._best = mean, self.weights()
        means = {name: round(figures[name], 6) for name in ("loss", "penalty")}
        line = {"step": figures["step"], **means, "minutes": figures["minutes"]}
        return {**line, "validation": validation, "mean": mean}

    @property
    def extra(self) -> dict[str, Tensor]:
        return {f"{_BEST}{name}": tensor for name, tensor in self._best.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._best = take_prefixed(tensors, _BEST)
        self._highest = max((line["mean"] for line in self.log), default=-1.0)

    def finish(self) -> dict[str, Any]:
        return {
            "head": self.trained.objective.head,
            **_state(max(self.log, key=lambda line: line["mean"])),
            "checks": self.log,
            "unreadable": {
                str(path): reason
                for name in self.names
                for path, reason in self.data.domains[name].unreadable.items()
            },
        }

    def write(self, out: Path, card: dict[str, Any]) -> None:
        name, device = full_name(self.settings.model), self.fabric.device
        if self.keep_last:
            last = {**card, **_state(card["checks"][-1])}
            write_weights(last_path(out), self.weights(), name, last, device)
        write_weights(out, self._best, name, card, device)

    def read_result(self, path: Path, done: dict[str, Any], was_done: bool) -> DomainResult:
        known = {name: done[name] for name in ("step", "validation", "minutes", "unreadable")}
        return DomainResult(path=path, checks=tuple(done["checks"]), was_done=was_done, **known)


def _state(check: Mapping[str, Any]) -> dict[str, Any]:
    return {"step": check["step"], "validation": check["validation"]}


def pick_images(n: int, batch_size: int, seed: int, step: int, domain: str) -> Tensor:
    """Return which of a domain's `n` images a step takes, drawn with replacement.

    The draws of one domain do not depend on which others there are.
    """
    generator = generator_at(seed, f"domain {domain}", step)
    return torch.randint(n, (batch_size,), generator=generator)


def minibatches(
    train: Mapping[str, ImageStore],
    batch_size: int,
    seed: int,
    steps: range,
    share: Callable[[Tensor], Tensor] = lambda picks: picks,
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Yield images and labels of every domain for each step, equally many of each domain.

    `batch_size` is the number of images per domain on all devices; `share` returns those of this
    device.
    """
    for start in range(steps.start, steps.stop, _CHUNK):
        numbers = range(start, min(start + _CHUNK, steps.stop))
        readers = []
        for name, domain in train.items():
            picks = [pick_images(len(domain), batch_size, seed, step, name) for step in numbers]
            readers.append(domain.batches([share(own) for own in picks]))
        for batches in zip(*readers, strict=True):
            yield [x for x, _ in batches], [y for _, y in batches]


def choose_domains(data: DomainSet, settings: DomainSettings) -> list[str]:
    """Return the domains to train on: all that are not held out."""
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
    """Return the training part and the held-out part of each domain, without unreadable images."""
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
                paths=tuple(sorted(domain.unreadable)),  # they are found in any order
            )
    return train, held


def coral_penalty(features: Sequence[Tensor]) -> Tensor:
    """Return how much the features of several domains differ, averaged over all pairs of domains.

    Sun & Saenko, "Deep CORAL", ECCV 2016 workshops, https://arxiv.org/abs/1607.01719, in the form
    of DomainBed: of a pair it is the squared difference of the means, averaged over the features,
    plus the squared difference of the covariances, averaged over all pairs of features. The
    covariances are divided by the number of samples less one. Each domain may have another number
    of samples (batch, width), at least two.
    """
    counts = [len(own) for own in features]
    text = (
        "Expected at least two domains with at least two samples each for CORAL, found "
        f"{', '.join(map(str, counts)) or 'none'} samples. Train on more domains, or with larger "
        "batches, or use erm."
    )
    if len(counts) < 2:
        raise BadInput("too_few_domains", text, expected=2, found=len(counts))
    if min(counts) < 2:
        raise BadInput("too_few_samples", text, expected=2, found=min(counts))
    moments = [_moments(at_least_float32(own)) for own in features]
    pairs = [
        (mean - other_mean).square().mean() + (covariance - other_covariance).square().mean()
        for (mean, covariance), (other_mean, other_covariance) in combinations(moments, 2)
    ]
    return torch.stack(pairs).mean()


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(dim=0)
    centred = x - mean
    return mean, centred.T @ centred / (len(x) - 1)


class DomainObjective(Objective):
    """Mean cross entropy over the domains, and CORAL's penalty on the inputs of the head.

    Without a penalty (`gamma` 0) this is ERM.
    """

    def __init__(self, head: str, gamma: float, dropout: float) -> None:
        super().__init__()
        self.head, self._gamma, self._dropout = head, gamma, dropout

    def forward(
        self,
        model: nn.Module,
        images: Sequence[Tensor],
        labels: Sequence[Tensor],
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        sizes = [len(own) for own in images]
        x = VIEWS(torch.cat(list(images)).float() / 255, generator)
        features, logits = self._run(model, x.contiguous(memory_format=torch.channels_last))
        losses = [
            F.cross_entropy(own, y)
            for own, y in zip(logits.float().split_with_sizes(sizes), labels, strict=True)
        ]
        loss = torch.stack(losses).mean()
        if self._gamma == 0:
            return loss, loss.new_zeros(())
        penalty = coral_penalty(features.split_with_sizes(sizes))
        return loss + self._gamma * penalty, penalty.detach()

    def _run(self, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        taken: list[Tensor] = []

        def drop(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            taken.append(F.dropout(inputs[0].flatten(1), self._dropout, self.training))
            return (taken[-1].reshape(inputs[0].shape), *inputs[1:])

        hook = get_head(model, self.head).register_forward_pre_hook(drop)
        try:
            logits = get_logits(model(x))
        finally:
            hook.remove()
        return taken[0], logits


def full_name(model: str) -> str:
    """Return the name of a model in `acclimate.zoo`.

    >>> full_name("resnet50")
    'torchvision:resnet50'
    """
    return f"torchvision:{model}" if model in DOMAINBED_MODELS else model


def build_model(settings: DomainSettings, x: Tensor, n_classes: int) -> tuple[nn.Module, str]:
    """Return the model with its first weights and one logit a class, and the name of its head.

    A head with another number of classes is replaced by a fresh one. `x` are images in [0, 1].
    """
    model = _begin(settings, n_classes)
    # Functions may return what was used before, in evaluation mode or partly frozen.
    model.requires_grad_(True).train()
    info = inspect_model(model, x)
    if info.logits_at is not None:
        raise UnsuitableModel(
            "unsupported_model",
            f"Expected {settings.model} to return only logits, found them at {info.logits_at!r}. "
            "Pass a function that returns such a model.",
            model=settings.model,
        )
    if info.n_classes != n_classes:
        replace_head(model, info.known_head, n_classes)
    return model, info.known_head


def _begin(settings: DomainSettings, n_classes: int) -> nn.Module:
    name = full_name(settings.model)
    if settings.weights is None and settings.pretrained and settings.model in DOMAINBED_MODELS:
        return _load_domainbed(settings.model)
    if settings.weights is None and not settings.pretrained and not is_own(name):
        return zoo.build(name, n_classes)
    return load_named(name, settings.weights)


def _load_domainbed(name: str) -> nn.Module:
    models = import_torchvision().models
    weights = models.get_model_weights(name)[_DOMAINBED_WEIGHTS]
    try:
        model = models.get_model(name, weights=weights)
    except OSError as error:
        raise BadInput(
            "weights_unavailable",
            f"The ImageNet weights of {name} cannot be downloaded ({error}). Download "
            f"{weights.url} on another machine and pass the file: --weights FILE instead of "
            "--pretrained.",
            name=name,
        ) from error
    transforms = weights.transforms()
    return NormalizedModel(model, transforms.mean, transforms.std)
