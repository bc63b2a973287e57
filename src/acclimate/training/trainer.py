"""The training loop of all tasks, on Lightning Fabric: one or several devices, mixed precision.

A `Task` defines what is trained on which batches and what is measured. `train` does the rest:
devices, order of the steps, checkpoints, log, and the file in the end.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor, nn

from acclimate.bench.run_folder import Resume
from acclimate.data import ImageStore
from acclimate.errors import BadInput, InvalidConfig, UnsuitableModel, import_extra, unknown_name
from acclimate.functional.norm import batch_norm_layers
from acclimate.functional.rng import generator_at, seed_of
from acclimate.introspect import try_forward
from acclimate.progress import Progress
from acclimate.storage import write_atomically
from acclimate.training.checkpoint import (
    Position,
    check_output,
    check_same,
    has_checkpoint,
    last_path,
    load_checkpoint,
    log_path,
    read_done,
    run_folder,
    save_checkpoint,
    write_weights,
)
from acclimate.training.objectives import Objective
from acclimate.training.settings import Result, Settings
from acclimate.zoo.external import NormalizedModel

_TEST_BATCH = 500
_TASKS = {
    "classification": ("classification", "Classification"),
    "domains": ("domains.task", "DomainTask"),
    "segmentation": ("segmentation", "Segmentation"),
}


class Trained(nn.Module):
    """All that is trained: the model, and the objective with what it may have of its own.

    One module from images to loss, so that every product in it is computed in the precision asked
    for and every gradient is shared among devices, whatever the objective does with the model.

    Args:
        model: Takes images in [0, 1].
        objective: Its loss.
        freezes_statistics: Whether BatchNorm normalises by the statistics it has, and keeps them;
            its weights stay trainable.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, freezes_statistics: bool = False
    ) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self._freezes_statistics = freezes_statistics

    def train(self, mode: bool = True) -> Trained:
        """Set the mode of all layers, except of BatchNorm where its statistics are frozen."""
        super().train(mode)
        if self._freezes_statistics:
            for layer in batch_norm_layers(self.model).values():
                layer.eval()
        return self

    def forward(self, x: Any, y: Any, generator: torch.Generator) -> Any:
        """Return the loss of a batch, or the loss and a penalty in it."""
        return self.objective(self.model, x, y, generator)


class Task(ABC, Generic[Result]):
    """What is trained, on which batches, and what is measured.

    Time is divided into epochs; at the end of each there are a line in the log and a checkpoint.
    """

    settings: Settings[Result]
    data: Any
    n_epochs: int
    trained: Trained  #: What `build` returned.
    remedy = "Use a smaller --lr."  #: If the loss is no longer finite.

    @abstractmethod
    def identify(self) -> dict[str, Any]:
        """Return what must be the same for a run to be resumed."""

    def verify(self, progress: Progress | None) -> None:
        """Check the data before the first step."""

    @abstractmethod
    def build(self) -> Trained:
        """Return what is trained, with its first weights."""

    @abstractmethod
    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer of `trained`."""

    def count_steps(self, epoch: int) -> int:
        """Return the number of steps of an epoch: each image once, unless a task overrides it."""
        return len(self._order(epoch))

    def batches(self, epoch: int, start: int, rank: int, n_ranks: int) -> Iterable[tuple[Any, Any]]:
        """Return the inputs and labels of each step of an epoch from `start`, for one device."""
        batches: Iterable[tuple[Any, Any]] = self.data.batches(
            [own[rank::n_ranks] for own in self._order(epoch)[start:]]
        )
        return batches

    def _order(self, epoch: int) -> list[Tensor]:
        n = self.settings.n_images_per_step
        return batch_order(len(self.data), n, self.settings.seed, epoch)

    def place(self, epoch: int, step: int) -> tuple[int, ...]:
        """Return what the random draws of a step depend on besides the seed."""
        return epoch, step

    def rate(self, step: int, n_steps: int) -> float | None:
        """Return the learning rate of a step, counted over all epochs; None if it is constant."""
        return None

    def begin(self, fabric: Any, epoch: int, progress: Progress | None) -> None:
        """Do what comes before an epoch; also called where one is resumed."""

    @abstractmethod
    def end(
        self, fabric: Any, figures: dict[str, Any], progress: Progress | None
    ) -> dict[str, Any]:
        """Return the line for the log at the end of an epoch, after what is measured there."""

    @property
    def extra(self) -> dict[str, Tensor]:
        """What a checkpoint keeps besides the weights."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor], log: list[dict[str, Any]]) -> None:
        """Take `extra` from a checkpoint, and the lines of the epochs that were done."""

    @abstractmethod
    def finish(
        self, fabric: Any, log: list[dict[str, Any]], progress: Progress | None
    ) -> dict[str, Any]:
        """Return what the card of the weights records, after the last epoch."""

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the model's weights, without what wraps models of libraries."""
        model = self.trained.model
        inner = model.model if isinstance(model, NormalizedModel) else model
        return {name: tensor.detach().cpu().clone() for name, tensor in inner.state_dict().items()}

    def write(self, out: Path, card: dict[str, Any], device: torch.device) -> None:
        """Write the weights."""
        write_weights(out, self.weights(), self.settings.model, card, device)

    @abstractmethod
    def read_result(self, path: Path, done: dict[str, Any], was_done: bool) -> Result:
        """Return the result of a run, given what its card records."""


def train(
    settings: Settings[Result],
    out: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    device: str = "auto",
    save_every: int = 200,
    root: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Train a model and write its weights.

    The order of the images and all draws depend on the seed and the place in the run alone: a run
    that was stopped, and resumed, ends at the same weights to the last bit on the same machine.

    Args:
        settings: What to train, on what, and how: `TrainSettings`, `DomainSettings` or
            `SegmentationSettings`.
        out: A safetensors file, which `zoo.load(name, weights=out)` reads; for several domains
            `load_trained(out)`, for segmentation `zoo.segmentation.load_dense(out)`. A log and,
            while the run is under way, a checkpoint lie beside it.
        resume: Continue where an interrupted run stopped.
        force: Start again, and overwrite.
        device: `auto`, `cpu`, `cuda` or `mps`.
        save_every: Steps between two checkpoints; there is also one at the end of every epoch, or
            after every measurement on several domains.
        root: Of all data; see `acclimate.data.data_root`.
        progress: Called with the stage, the count done and the count to do.
        **options: For classification `objective`, what to minimise if it differs from the settings.
            For domains `data`, the set if it is loaded already, and `keep_last`, whether to write
            also the weights after the last step, as `NAME.last.safetensors`.

    Raises:
        BadInput: The data is not there or not as it must be; or the file is there and neither
            `resume` nor `force` is given.
        InvalidConfig: The loss became infinite.
        UnsuitableModel: The model does not return logits as the task needs them.
        ArtifactMismatch: What is to be resumed is of another run.
        MissingExtra: lightning-fabric, or the library of the model, is not installed.
    """
    out, run = Path(out), run_folder(Path(out))
    check_output(out, resume=resume, force=force)
    if save_every < 1:
        raise BadInput(
            "out_of_range",
            f"Expected save_every to be at least 1, found {save_every}.",
            option="save_every",
            found=save_every,
        )
    module, name = _TASKS[settings.task]
    kind = getattr(importlib.import_module(f"acclimate.training.{module}"), name)
    task: Task[Result] = kind(settings, root, **options)
    identity = task.identify()
    if resume and out.exists() and not has_checkpoint(run):
        return task.read_result(out, read_done(out, identity), True)
    if resume:
        check_same(run, identity)
    task.verify(progress)
    fabric = make_fabric(settings, device)
    is_writer = fabric.is_global_zero
    with repeatable(settings.seed):
        task.trained = task.build()
        task.trained.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = task.make_optimizer()
        wrapped = fabric.setup(task.trained, optimizer)
        with run.lock() if is_writer else nullcontext():
            if force and is_writer:
                run.clear()
                for path in (log_path(out), last_path(out)):
                    path.unlink(missing_ok=True)
            begun: Resume = fabric.broadcast(run.begin(identity) if is_writer else None)
            position, tensors = load_checkpoint(begun, task.trained, optimizer)
            fabric.strategy.precision.load_state_dict(position.scaler)
            log = [{name: line[name] for name in line if name != "unit"} for line in begun.records]
            if tensors:
                task.restore(tensors, log)

            def keep() -> None:
                position.scaler = fabric.strategy.precision.state_dict()
                if is_writer:
                    if position.step == 0:  # an epoch has ended
                        run.append(f"epoch {position.epoch}", log[-1])
                    save_checkpoint(run, task.trained, optimizer, position, task.extra)

            run_epochs(fabric, task, wrapped, position, log, keep, save_every, progress)
            figures = task.finish(fabric, log, progress)
            if is_writer:
                lines = "".join(json.dumps(line) + "\n" for line in log)
                write_atomically(log_path(out), lines.encode())
                minutes = round(position.seconds / 60, 2)
                card = {**identity, "command": settings.command, **figures, "minutes": minutes}
                task.write(out, card, fabric.device)
                run.remove()
    fabric.barrier()
    return task.read_result(out, read_done(out, identity), False)


def run_epochs(
    fabric: Any,
    task: Task[Any],
    wrapped: tuple[Any, Any],
    position: Position,
    log: list[dict[str, Any]],
    keep: Callable[[], None],
    save_every: int,
    progress: Progress | None,
) -> None:
    """Train from a position, which is kept up to date, to the end.

    `wrapped` are the module and its optimizer, set up by Fabric. The log gets a line at the end of
    each epoch; `keep` writes a checkpoint there, and every `save_every` steps within an epoch.
    """
    trained, optimizer = wrapped
    seed = task.settings.seed
    counts = [task.count_steps(epoch) for epoch in range(task.n_epochs)]
    before, began = position.seconds, time.perf_counter()
    rank, n_ranks = fabric.global_rank, fabric.world_size
    while position.epoch < task.n_epochs:
        epoch, n_steps = position.epoch, counts[position.epoch]
        n_before = sum(counts[:epoch])
        task.begin(fabric, epoch, progress)
        trained.train()
        for batch in task.batches(epoch, position.step, rank, n_ranks):
            x, y = fabric.to_device(batch)
            place = (*task.place(epoch, position.step), rank)
            rate = task.rate(n_before + position.step, n_steps)
            if rate is not None:
                for group in optimizer.param_groups:
                    group["lr"] = rate
            # Dropout and its like draw from the global generators, which know no place.
            torch.manual_seed(seed_of(seed, "layers", *place))
            optimizer.zero_grad()
            given = trained(x, y, generator_at(seed, "augmentation", *place))
            loss, penalty = given if isinstance(given, tuple) else (given, 0.0)
            fabric.backward(loss)
            optimizer.step()
            number = n_before + position.step + 1
            value = float(loss.detach())
            _check_loss(value, number, optimizer, task.remedy)
            position.step += 1
            position.loss_sum += value
            position.penalty_sum += float(penalty)
            position.seconds = before + time.perf_counter() - began
            if progress is not None:
                progress("train", number, sum(counts))
            if number % save_every == 0 and position.step < n_steps:
                keep()
        sums = torch.tensor([position.loss_sum, position.penalty_sum], dtype=torch.float64)
        loss_mean, penalty_mean = (fabric.all_reduce(sums, reduce_op="mean") / n_steps).tolist()
        figures = {"loss": loss_mean, "penalty": penalty_mean}
        figures["lr"] = optimizer.param_groups[0]["lr"]
        figures |= {"epoch": epoch + 1, "step": n_before + n_steps}
        figures["minutes"] = round(position.seconds / 60, 2)
        log.append(task.end(fabric, figures, progress))
        position.epoch, position.step = epoch + 1, 0
        position.loss_sum = position.penalty_sum = 0.0
        position.seconds = before + time.perf_counter() - began
        keep()


def _check_loss(loss: float, step: int, optimizer: Any, remedy: str) -> None:
    if not math.isfinite(loss):
        raise InvalidConfig(
            "diverged",
            f"The loss became {loss} in step {step}, at a learning rate of "
            f"{optimizer.param_groups[0]['lr']:.3g}. {remedy}",
            step=step,
        )


def make_fabric(settings: Settings[Any], device: str) -> Any:
    """Return Fabric for these devices and this precision, launched."""
    device = _choose_device(device, settings)
    library = import_extra("lightning_fabric", "Training", "acclimate[train]", "lightning-fabric")
    fabric = library.Fabric(
        accelerator=device, devices=settings.devices, precision=settings.precision
    )
    fabric.launch()
    return fabric


def _choose_device(name: str, settings: Settings[Any]) -> str:
    """Return the kind of device, after everything that Fabric would refuse or replace."""
    counts = {
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
        "cpu": settings.devices,  # on processors, devices are processes
    }
    if name == "auto":
        name = next(kind for kind, count in counts.items() if count)
    if name not in counts:
        raise unknown_name("device", name, (*counts, "auto"))
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


def batch_order(n: int, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """Return which images each step of an epoch takes.

    What does not fill a batch is left out, other images in every epoch; if all images together do
    not fill one, they are the only batch.
    """
    order = torch.randperm(n, generator=generator_at(seed, "order", epoch))
    if n < batch_size:
        return [order]
    return list(torch.split(order[: n - n % batch_size], batch_size))


def share(picks: Sequence[Tensor], fabric: Any) -> Sequence[Tensor]:
    """Return the batches that this device measures."""
    return picks[fabric.global_rank :: fabric.world_size]


@torch.no_grad()
def predict_share(
    fabric: Any,
    model: nn.Module,
    data: ImageStore,
    batch_size: int,
    stage: str,
    progress: Progress | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits and labels of the batches that this device measures, in evaluation mode."""
    model.eval()
    picks = share(torch.split(torch.arange(len(data)), batch_size), fabric)
    for number, (x, y) in enumerate(data.batches(picks), start=1):
        yield model(x.to(fabric.device).float() / 255), y
        if progress is not None:
            progress(stage, number, len(picks))


def error_percent(
    fabric: Any, model: nn.Module, data: ImageStore, progress: Progress | None = None
) -> float:
    """Return the part of images that are classified wrongly, in percent, in full precision."""
    n_wrong, n = 0, 0
    for logits, y in predict_share(fabric, model, data, _TEST_BATCH, "test", progress):
        n_wrong += int((logits.argmax(dim=1).cpu() != y).sum())
        n += len(y)
    counts = fabric.all_reduce(torch.tensor([n_wrong, n]), reduce_op="sum")
    return 100 * int(counts[0]) / int(counts[1])


def first_images(data: ImageStore, n: int = 2) -> Tensor:
    """Return the first images as stored, fewer if there are not as many."""
    x, _ = next(data.batches([torch.arange(min(n, len(data)))]))
    return x


def check_logits(model: nn.Module, name: str, x: Tensor, n_classes: int, per_pixel: bool) -> None:
    """Let all parameters train, in training mode; refuse a model with other logits.

    Functions may return a model that was used before, in evaluation mode or partly frozen.
    """
    model.requires_grad_(True).train()
    logits = try_forward(model, x.float() / 255)
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    expected = (len(x), n_classes)
    if shape[:2] != expected or len(shape) != (4 if per_pixel else 2):
        what = "class and pixel" if per_pixel else "class"
        raise UnsuitableModel(
            "wrong_logits",
            f"Expected {name} to return logits of shape {expected}"
            f"{' and height and width' if per_pixel else ''} for {len(x)} images of {n_classes} "
            f"classes, found {shape}. Pass a model with one logit per {what}.",
            found=shape,
        )
