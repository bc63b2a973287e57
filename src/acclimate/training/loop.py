"""The training loop, on Lightning Fabric: one or several devices, full or mixed precision."""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from acclimate.data import ImageStore
from acclimate.data.places import Progress
from acclimate.errors import BadInput, InvalidConfig, MissingExtra, did_you_mean
from acclimate.training.checkpoint import Position
from acclimate.training.draws import batch_order, generator_at, seed_of
from acclimate.training.objectives import Objective
from acclimate.training.settings import TrainSettings

_TEST_BATCH = 500


class Trained(nn.Module):
    """All that is trained: the model, and the objective with what it may have of its own.

    One module from images to loss, so that every product in it is computed in the precision asked
    for and every gradient is shared among devices, whatever the objective does with the model.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of a batch."""
        return self.objective(self.model, x, y, generator)  # type: ignore[no-any-return]


class Computing(Protocol):
    """Settings that say how many devices compute, and how precisely."""

    @property
    def devices(self) -> int:
        """How many compute together."""

    @property
    def precision(self) -> str:
        """One of `acclimate.training.settings.PRECISIONS`."""


def make_fabric(settings: Computing, device: str) -> Any:
    """Return Fabric for these devices and this precision, launched.

    Args:
        settings: Of the run.
        device: `auto`, `cpu`, `cuda` or `mps`.

    Raises:
        BadInput: There is no such device, or there are not as many.
        InvalidConfig: The device cannot compute in that precision.
        MissingExtra: lightning-fabric is not installed.
    """
    device = _choose_device(device, settings)
    try:
        fabric = importlib.import_module("lightning_fabric")
    except ModuleNotFoundError as error:
        if error.name != "lightning_fabric":
            raise
        raise MissingExtra(
            "missing_extra",
            "Training requires lightning-fabric, which is not installed. Run: pip install "
            "'acclimate[train]'",
            package="lightning-fabric",
        ) from error
    made = fabric.Fabric(accelerator=device, devices=settings.devices, precision=settings.precision)
    made.launch()
    return made


def _choose_device(name: str, settings: Computing) -> str:
    """Return the kind of device, after everything that Fabric would refuse or replace."""
    counts = {
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
        "cpu": settings.devices,  # on processors, devices are processes
    }
    if name == "auto":
        name = next(kind for kind, count in counts.items() if count)
    if name not in counts:
        raise BadInput(
            "unknown_name",
            f'Unknown device "{name}". {did_you_mean(name, [*counts, "auto"])}',
            kind="device",
            name=name,
            known=(*counts, "auto"),
        )
    if counts[name] < settings.devices:
        raise BadInput(
            "device_unavailable",
            f'Expected {settings.devices} device(s) "{name}" on this machine, found '
            f"{counts[name]}. Use --device auto or --device cpu, or fewer --devices.",
            device=name,
        )
    if name == "cpu" and settings.precision == "16-mixed":
        raise InvalidConfig(
            "conflicting_options",
            "The precision 16-mixed requires a GPU, but this run uses the CPU. Use --precision "
            "bf16-mixed or 32-true.",
            options=("device", "precision"),
        )
    return name


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Compute the same again given the same, and leave the global generators as they were."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what CUDA asks for
    was_on = torch.are_deterministic_algorithms_enabled()
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with torch.random.fork_rng():
        try:
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
            torch.manual_seed(seed)
            yield
        finally:
            torch.use_deterministic_algorithms(was_on, warn_only=was_warning)
            torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def make_optimizer(trained: nn.Module, settings: TrainSettings) -> torch.optim.SGD:
    """Return SGD as the settings ask for."""
    return torch.optim.SGD(
        trained.parameters(),
        settings.lr,
        momentum=settings.momentum,
        nesterov=settings.momentum > 0,
        weight_decay=settings.weight_decay,
    )


class Batched(Protocol):
    """Labelled images, of which any may be asked for."""

    def __len__(self) -> int:
        """How many there are."""

    def batches(self, picks: Sequence[Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
        """Return the images of each list of numbers, with their labels."""


class Epochs(Protocol):
    """Settings of a run that goes over its images again and again."""

    @property
    def epochs(self) -> int:
        """How often."""

    @property
    def batch_size(self) -> int:
        """Images a step."""

    @property
    def seed(self) -> int:
        """Of all draws."""


def run_epochs(
    fabric: Any,
    trained: Any,
    optimizer: Any,
    data: Batched,
    settings: Epochs,
    position: Position,
    *,
    rate_at: Callable[[int, int], float],
    keep: Callable[[], None],
    log: Callable[[dict[str, Any]], None],
    save_every: int,
    begin: Callable[[int], None] | None = None,
    remedy: str = "Use a smaller --lr.",
    progress: Progress | None = None,
) -> None:
    """Train from a position to the end.

    Args:
        fabric: What `make_fabric` gave.
        trained: A module from images, labels and draws to the loss, or to the loss and a penalty in
            it; set up by Fabric.
        optimizer: Set up by Fabric.
        data: To train on.
        settings: Of the run.
        position: Where to begin; it is kept up to date.
        rate_at: From the number of a step and those of an epoch to the learning rate.
        keep: Called when the position is to be kept: at every epoch's end, and now and then.
        log: Called with the figures of each epoch.
        save_every: Steps between two calls of `keep` within an epoch.
        begin: Called with the number of an epoch before it begins, or goes on.
        remedy: What to do if the loss is no number any more.
        progress: Called with the stage, the count done and the count to do.
    """
    n_steps = len(batch_order(len(data), settings.batch_size, settings.seed, 0))
    n_all = settings.epochs * n_steps
    before, began = position.seconds, time.perf_counter()
    rank, n_ranks = fabric.global_rank, fabric.world_size
    while position.epoch < settings.epochs:
        epoch = position.epoch
        if begin is not None:
            begin(epoch)
        trained.train()
        order = batch_order(len(data), settings.batch_size, settings.seed, epoch)
        own = [picks[rank::n_ranks] for picks in order[position.step :]]
        rate = rate_at(epoch * n_steps, n_steps)
        for x, y in data.batches(own):
            place = (epoch, position.step, rank)
            rate = rate_at(epoch * n_steps + position.step, n_steps)
            for group in optimizer.param_groups:
                group["lr"] = rate
            # Dropout and its like draw from the global generators, which know no place.
            torch.manual_seed(seed_of(settings.seed, "layers", *place))
            draws = generator_at(settings.seed, "augmentation", *place)
            optimizer.zero_grad()
            given = trained(x.to(fabric.device), y.to(fabric.device), draws)
            loss, penalty = given if isinstance(given, tuple) else (given, 0.0)
            fabric.backward(loss)
            optimizer.step()
            _count(position, float(loss.detach()), float(penalty), rate, remedy)
            position.seconds = before + time.perf_counter() - began
            if progress is not None:
                progress("train", epoch * n_steps + position.step, n_all)
            if position.step % save_every == 0 and position.step < n_steps:
                keep()
        sums = torch.tensor([position.loss_sum, position.penalty_sum], dtype=torch.float64)
        loss_mean, penalty_mean = (fabric.all_reduce(sums, reduce_op="mean") / n_steps).tolist()
        position.epoch, position.step = epoch + 1, 0
        position.loss_sum = position.penalty_sum = 0.0
        figures = {"epoch": epoch + 1, "loss": loss_mean, "penalty": penalty_mean, "lr": rate}
        log({**figures, "minutes": round(position.seconds / 60, 2)})
        position.seconds = before + time.perf_counter() - began
        keep()


def _count(position: Position, loss: float, penalty: float, rate: float, remedy: str) -> None:
    if not math.isfinite(loss):
        raise InvalidConfig(
            "diverged",
            f"The loss became {loss} in step {position.step + 1} of epoch {position.epoch + 1}, "
            f"at a learning rate of {rate:.3g}. {remedy}",
            step=position.step + 1,
        )
    position.step += 1
    position.loss_sum += loss
    position.penalty_sum += penalty


@torch.no_grad()
def error_percent(
    fabric: Any, model: nn.Module, data: ImageStore, progress: Progress | None = None
) -> float:
    """Return the part of images that are classified wrongly, in percent, in full precision.

    Args:
        fabric: What `make_fabric` gave.
        model: On the device.
        data: To measure on.
        progress: Called with the stage, the count done and the count to do.
    """
    model.eval()
    picks = list(torch.split(torch.arange(len(data)), _TEST_BATCH))[
        fabric.global_rank :: fabric.world_size
    ]
    n_wrong, n = 0, 0
    for number, (x, y) in enumerate(data.batches(picks), start=1):
        logits = model(x.to(fabric.device).float() / 255)
        n_wrong += int((logits.argmax(dim=1).cpu() != y).sum())
        n += len(y)
        if progress is not None:
            progress("test", number, len(picks))
    counts = fabric.all_reduce(torch.tensor([n_wrong, n]), reduce_op="sum")
    return 100 * int(counts[0]) / int(counts[1])
