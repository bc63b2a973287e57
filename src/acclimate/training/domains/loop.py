"""The training loop on several domains: balanced minibatches, checks, the best weights so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.data import ImageStore
from acclimate.data.places import Progress
from acclimate.errors import InvalidConfig
from acclimate.training.checkpoint import Position
from acclimate.training.domains.settings import DomainSettings
from acclimate.training.draws import generator_at, seed_of
from acclimate.training.loop import error_percent
from acclimate.zoo.external import NormalizedModel

_BEST = "best."
_CHUNK = 50  # steps whose files are listed at a time; what is cut is listed again


class Best:
    """The weights of the best check so far, by the names they are written under."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def take(self, model: nn.Module) -> None:
        """Copy the weights of a model."""
        self.tensors = copy_weights(model)

    def to_tensors(self) -> dict[str, Tensor]:
        """Return them as a checkpoint keeps them."""
        return {f"{_BEST}{name}": tensor for name, tensor in self.tensors.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take them from a checkpoint."""
        self.tensors = {
            name.removeprefix(_BEST): tensor
            for name, tensor in tensors.items()
            if name.startswith(_BEST)
        }


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a model's weights, without what wraps models of libraries."""
    inner = model.model if isinstance(model, NormalizedModel) else model
    return {name: tensor.detach().cpu().clone() for name, tensor in inner.state_dict().items()}


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


def run_steps(
    fabric: Any,
    trained: nn.Module,
    optimizer: Any,
    train: Mapping[str, ImageStore],
    settings: DomainSettings,
    position: Position,
    *,
    keep: Callable[[], None],
    check: Callable[[dict[str, Any]], None],
    save_every: int,
    progress: Progress | None = None,
) -> None:
    """Train from a position to the end.

    Args:
        fabric: What `make_fabric` gave.
        trained: A `DomainTrained`, set up by Fabric.
        optimizer: Set up by Fabric.
        train: What each domain is trained on.
        settings: Of the run.
        position: Where to begin; it is kept up to date.
        keep: Called when the position is to be kept: after every check, and now and then.
        check: Called with step, loss and penalty, means since the last check.
        save_every: Steps between two calls of `keep` besides.
        progress: Called with the stage, the count done and the count to do.
    """
    before, began = position.seconds, time.perf_counter()
    rank, n_ranks = fabric.global_rank, fabric.world_size
    steps = range(position.step, settings.steps)
    batch_size = settings.hparams.batch_size
    data = minibatches(train, batch_size, settings.seed, steps, rank, n_ranks)
    trained.train()
    for step, (images, labels) in zip(steps, data, strict=True):
        # Dropout and its like draw from the global generators, which know no place.
        torch.manual_seed(seed_of(settings.seed, "layers", step, rank))
        draws = generator_at(settings.seed, "augmentation", step, rank)
        x, y = ([each.to(fabric.device) for each in own] for own in (images, labels))
        optimizer.zero_grad()
        loss, penalty = trained(x, y, draws)
        fabric.backward(loss)
        optimizer.step()
        _count(position, float(loss.detach()), float(penalty), settings)
        position.seconds = before + time.perf_counter() - began
        if progress is not None:
            progress("train", position.step, settings.steps)
        if position.step % settings.check_every == 0 or position.step == settings.steps:
            check(_average(fabric, position))
            position.loss_sum = position.penalty_sum = 0.0
            position.n_summed = 0
            position.seconds = before + time.perf_counter() - began
            trained.train()
            keep()
        elif position.step % save_every == 0:
            keep()


def _count(position: Position, loss: float, penalty: float, settings: DomainSettings) -> None:
    if not math.isfinite(loss):
        smaller = ", or a smaller --gamma" if settings.algorithm == "coral" else ""
        raise InvalidConfig(
            "diverged",
            f"The loss became {loss} in step {position.step + 1}, at a learning rate of "
            f"{settings.hparams.lr:.3g}. Use a smaller --lr{smaller}.",
            step=position.step + 1,
        )
    position.step += 1
    position.n_summed += 1
    position.loss_sum += loss
    position.penalty_sum += penalty


def _average(fabric: Any, position: Position) -> dict[str, Any]:
    sums = torch.tensor([position.loss_sum, position.penalty_sum], dtype=torch.float64)
    loss, penalty = (fabric.all_reduce(sums, reduce_op="mean") / position.n_summed).tolist()
    return {
        "step": position.step,
        "loss": round(loss, 6),
        "penalty": round(penalty, 6),
        "minutes": round(position.seconds / 60, 2),
    }


def measure(
    fabric: Any, model: nn.Module, held: Mapping[str, ImageStore], progress: Progress | None = None
) -> dict[str, float]:
    """Return the accuracy on each part that is held out, in percent, in full precision.

    Args:
        fabric: What `make_fabric` gave.
        model: On the device; it is in evaluation mode afterwards.
        held: By domain.
        progress: Called with the stage, the count done and the count to do.
    """
    found = {}
    for number, (name, domain) in enumerate(held.items()):
        if progress is not None:
            progress("validate", number, len(held))
        found[name] = round(100 - error_percent(fabric, model, domain), 4)
    return found
