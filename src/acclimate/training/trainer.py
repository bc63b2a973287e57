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
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from acclimate import zoo
from acclimate.bench.run_folder import Resume
from acclimate.data import ImageStore
from acclimate.errors import (
    BadInput,
    InvalidConfig,
    UnsuitableModel,
    check_at_least,
    import_extra,
)
from acclimate.functional.norm import batch_norm_layers
from acclimate.functional.rng import generator_at, seed_of
from acclimate.introspect import try_forward
from acclimate.progress import Progress
from acclimate.storage import write_atomically
from acclimate.training.checkpoint import (
    Position,
    check_output,
    has_checkpoint,
    last_path,
    load_checkpoint,
    log_path,
    read_done,
    run_folder,
    save_checkpoint,
    write_weights,
)
from acclimate.training.objectives import Objective, make_objective
from acclimate.training.sets import load_sets
from acclimate.training.settings import Result, Settings, TrainResult, TrainSettings, learning_rate
from acclimate.zoo.external import unwrap
from acclimate.zoo.named import get_device, is_own

Shared = TypeVar("Shared", Tensor, Sequence[Tensor])

_TEST_BATCH = 500
_TASKS = {
    "classification": ("trainer", "Classification"),
    "domains": ("domains.task", "DomainTask"),
    "segmentation": ("segmentation", "Segmentation"),
}


class Trained(nn.Module):
    """The model and the objective, with its own parameters if it has any.

    It is one module from images to loss, so that Fabric's precision and its sharing of gradients
    among devices apply to everything that the objective does with the model.

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
        return self.objective(self.model, x, y, generator)


class Task(ABC, Generic[Result]):
    """What is trained, on which batches, and what is measured.

    A run has epochs; each ends with a line in the log and a checkpoint.
    """

    settings: Settings[Result]
    data: Any
    n_epochs: int
    remedy = "Use a smaller --lr."  #: What to do if the loss is no longer finite.

    # Set by `train`.
    trained: Trained
    fabric: Any
    log: list[dict[str, Any]]
    progress: Progress | None = None

    @abstractmethod
    def identify(self) -> dict[str, Any]:
        """Return what must be the same for a run to be resumed."""

    def verify(self) -> None:
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

    def batches(self, epoch: int, start: int) -> Iterable[tuple[Any, Any]]:
        """Return the inputs and labels of each step of an epoch from `start`, for this device."""
        batches: Iterable[tuple[Any, Any]] = self.data.batches(
            [self.share(own) for own in self._order(epoch)[start:]]
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

    def begin(self, epoch: int) -> None:
        """Do what comes before an epoch; also called where one is resumed."""

    @abstractmethod
    def end(self, figures: dict[str, Any]) -> dict[str, Any]:
        """Return the line for the log at the end of an epoch, after what is measured there."""

    @property
    def extra(self) -> dict[str, Tensor]:
        """What a checkpoint keeps besides the weights."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take `extra` from a checkpoint; `log` has the lines of the epochs that were done."""

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """Return what the card of the weights records, after the last epoch."""

    def write(self, out: Path, card: dict[str, Any]) -> None:
        """Write the weights."""
        write_weights(out, self.weights(), self.settings.model, card, self.fabric.device)

    @abstractmethod
    def read_result(self, path: Path, done: dict[str, Any], was_done: bool) -> Result:
        """Return the result of a run, given what its card records."""

    def report(self, stage: str, n_done: int, n_all: int) -> None:
        """Report progress to the caller of `train`."""
        if self.progress is not None:
            self.progress(stage, n_done, n_all)

    def share(self, items: Shared) -> Shared:
        """Return what this device computes."""
        own: Shared = items[self.fabric.global_rank :: self.fabric.world_size]
        return own

    @torch.no_grad()
    def predict(
        self, data: ImageStore, batch_size: int, stage: str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield logits and labels of the batches that this device measures, in full precision."""
        model = self.trained.model.eval()
        picks = self.share(torch.split(torch.arange(len(data)), batch_size))
        for number, (x, y) in enumerate(data.batches(picks), start=1):
            yield model(x.to(self.fabric.device).float() / 255), y
            self.report(stage, number, len(picks))

    def error_percent(self, data: ImageStore) -> float:
        """Return the part of images that are classified wrongly, in percent."""
        n_wrong, n = 0, 0
        for logits, y in self.predict(data, _TEST_BATCH, "test"):
            n_wrong += int((logits.argmax(dim=1).cpu() != y).sum())
            n += len(y)
        counts = self.fabric.all_reduce(torch.tensor([n_wrong, n]), reduce_op="sum")
        return 100 * int(counts[0]) / int(counts[1])

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the model's weights, without what wraps models of libraries."""
        tensors = unwrap(self.trained.model).state_dict()
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


class Classification(Task[TrainResult]):
    """Cross entropy on images with one label, by SGD."""

    settings: TrainSettings
    remedy = "Use a smaller --lr, or more --warmup-epochs."

    def __init__(
        self, settings: TrainSettings, root: str | Path | None, objective: Objective | None = None
    ) -> None:
        self.settings, self.n_epochs = settings, settings.epochs
        self.data, self.test = load_sets(settings, root)
        self.objective = make_objective(settings) if objective is None else objective

    def identify(self) -> dict[str, Any]:
        return {
            "settings": self.settings.to_dict(),
            "objective": type(self.objective).__name__,
            "data": self.data.description,
            "test_data": None if self.test is None else self.test.description,
            "classes": list(self.data.classes),
        }

    def build(self) -> Trained:
        name, n_classes, x = self.settings.model, len(self.data.classes), first_images(self.data)
        model = zoo.build(name, None if is_own(name) else n_classes)
        check_logits(model, name, x, n_classes, per_pixel=False)
        self.objective.attach(model, x)
        return Trained(model, self.objective)

    def make_optimizer(self) -> torch.optim.Optimizer:
        options = self.settings
        return torch.optim.SGD(
            self.trained.parameters(),
            options.lr,
            momentum=options.momentum,
            nesterov=options.momentum > 0,
            weight_decay=options.weight_decay,
        )

    def rate(self, step: int, n_steps: int) -> float:
        return learning_rate(self.settings, step, n_steps)

    def end(self, figures: dict[str, Any]) -> dict[str, Any]:
        line = {name: figures[name] for name in ("epoch", "loss", "lr", "minutes")}
        return {**line, "loss": round(line["loss"], 6)}

    def finish(self) -> dict[str, Any]:
        losses, error = [line["loss"] for line in self.log], None
        if self.test is not None:
            error = self.error_percent(self.test)
            self.log.append({"test_error_percent": round(error, 4)})
        return {"test_error_percent": error, "loss": losses}

    def write(self, out: Path, card: dict[str, Any]) -> None:
        self.objective.write(out, self.trained.model, self.identify())
        super().write(out, card)

    def read_result(self, path: Path, done: dict[str, Any], was_done: bool) -> TrainResult:
        return TrainResult(
            path=path,
            minutes=done["minutes"],
            was_done=was_done,
            error=done["test_error_percent"],
            losses=tuple(done["loss"]),
        )


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

    The order of the images and all draws depend only on the seed and the step: a run that was
    stopped and resumed ends with the same weights, bit for bit, on the same machine.

    Args:
        settings: What to train, on what, and how: `TrainSettings`, `DomainSettings` or
            `SegmentationSettings`.
        out: A safetensors file, which `zoo.load(name, weights=out)` reads; for several domains
            `load_trained(out)`, for segmentation `zoo.segmentation.load_dense(out)`. Beside it are
            a log and, until the run has ended, the folder `NAME.run` with its checkpoint.
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
        BadInput: The data is not as it must be; or `out` exists and neither `resume` nor `force`
            is given.
        InvalidConfig: The loss became infinite.
        UnsuitableModel: The model does not return logits as the task needs them.
        ArtifactMismatch: What is to be resumed is of another run.
    """
    out, run = Path(out), run_folder(Path(out))
    check_output(out, resume=resume, force=force)
    check_at_least("save_every", save_every, 1)
    module, name = _TASKS[settings.task]
    kind = getattr(importlib.import_module(f"acclimate.training.{module}"), name)
    task: Task[Result] = kind(settings, root, **options)
    task.progress, identity = progress, task.identify()
    if resume and out.exists() and not has_checkpoint(run):
        return task.read_result(out, read_done(out, identity), True)
    if resume and has_checkpoint(run):
        remedy = "Use the same settings to resume, or start again with --force instead of --resume."
        run.check_same(identity, f"The run in {run.path}", remedy)
    task.verify()
    task.fabric = fabric = make_fabric(settings, device)
    is_writer = fabric.is_global_zero
    with repeatable(settings.seed):
        task.trained = task.build()
        task.trained.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = task.make_optimizer()
        trained, wrapped = fabric.setup(task.trained, optimizer)
        with run.lock() if is_writer else nullcontext():
            if force and is_writer:
                run.clear()
                for path in (log_path(out), last_path(out)):
                    path.unlink(missing_ok=True)
            begun: Resume = fabric.broadcast(run.begin(identity) if is_writer else None)
            position, tensors = load_checkpoint(begun, task.trained, optimizer)
            fabric.strategy.precision.load_state_dict(position.scaler)
            task.log = [{k: v for k, v in line.items() if k != "unit"} for line in begun.records]
            task.restore(tensors)

            def keep() -> None:
                position.scaler = fabric.strategy.precision.state_dict()
                if is_writer:
                    if position.step == 0:  # an epoch has ended
                        run.append(f"epoch {position.epoch}", task.log[-1])
                    save_checkpoint(run, task.trained, optimizer, position, task.extra)

            run_epochs(task, trained, wrapped, position, keep, save_every)
            figures = task.finish()
            if is_writer:
                lines = "".join(json.dumps(line) + "\n" for line in task.log)
                write_atomically(log_path(out), lines.encode())
                minutes = round(position.seconds / 60, 2)
                about = {"command": settings.command, **figures, "minutes": minutes}
                task.write(out, {**identity, **about})
                run.remove()
    fabric.barrier()
    return task.read_result(out, read_done(out, identity), False)


def run_epochs(
    task: Task[Any],
    trained: Any,
    optimizer: Any,
    position: Position,
    keep: Callable[[], None],
    save_every: int,
) -> None:
    """Train from a position, which is updated, to the end.

    `trained` and `optimizer` were set up by Fabric. `keep` writes a checkpoint: at the end of each
    epoch, and every `save_every` steps within it.
    """
    fabric, seed = task.fabric, task.settings.seed
    counts = [task.count_steps(epoch) for epoch in range(task.n_epochs)]
    before, began = position.seconds, time.perf_counter()
    while position.epoch < task.n_epochs:
        epoch, n_steps = position.epoch, counts[position.epoch]
        n_before = sum(counts[:epoch])
        task.begin(epoch)
        trained.train()
        for batch in task.batches(epoch, position.step):
            x, y = fabric.to_device(batch)
            place = (*task.place(epoch, position.step), fabric.global_rank)
            rate = task.rate(n_before + position.step, n_steps)
            if rate is not None:
                for group in optimizer.param_groups:
                    group["lr"] = rate
            # Dropout and similar layers draw from the global generator.
            torch.manual_seed(seed_of(seed, "layers", *place))
            optimizer.zero_grad()
            given = trained(x, y, generator_at(seed, "augmentation", *place))
            loss, penalty = given if isinstance(given, tuple) else (given, 0.0)
            fabric.backward(loss)
            optimizer.step()
            number, value = n_before + position.step + 1, float(loss.detach())
            if not math.isfinite(value):
                raise InvalidConfig(
                    "diverged",
                    f"The loss became {value} in step {number}, at a learning rate of "
                    f"{optimizer.param_groups[0]['lr']:.3g}. {task.remedy}",
                    step=number,
                )
            position.step += 1
            position.loss_sum += value
            position.penalty_sum += float(penalty)
            position.seconds = before + time.perf_counter() - began
            task.report("train", number, sum(counts))
            if number % save_every == 0 and position.step < n_steps:
                keep()
        sums = torch.tensor([position.loss_sum, position.penalty_sum], dtype=torch.float64)
        loss_mean, penalty_mean = (fabric.all_reduce(sums, reduce_op="mean") / n_steps).tolist()
        figures: dict[str, Any] = {"epoch": epoch + 1, "step": n_before + n_steps}
        figures |= {"loss": loss_mean, "penalty": penalty_mean}
        figures |= {"lr": optimizer.param_groups[0]["lr"]}
        figures |= {"minutes": round(position.seconds / 60, 2)}
        task.log.append(task.end(figures))
        position.epoch, position.step = epoch + 1, 0
        position.loss_sum = position.penalty_sum = 0.0
        position.seconds = before + time.perf_counter() - began
        keep()


def make_fabric(settings: Settings[Any], device: str) -> Any:
    """Return Fabric for these devices and this precision, launched."""
    device = _choose_device(device, settings)
    library = import_extra("lightning_fabric", "Training", "train", "lightning-fabric")
    fabric = library.Fabric(
        accelerator=device, devices=settings.devices, precision=settings.precision
    )
    fabric.launch()
    return fabric


def _choose_device(name: str, settings: Settings[Any]) -> str:
    """Return the kind of device; refuse what Fabric would refuse or replace."""
    name = get_device(name).type
    # On processors, devices are processes.
    n = {"cuda": torch.cuda.device_count(), "mps": 1}.get(name, settings.devices)
    if n < settings.devices:
        raise BadInput(
            "device_unavailable",
            f'Expected {settings.devices} device(s) "{name}" on this machine, found {n}. Use '
            "--device cpu or fewer --devices.",
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
    """Use deterministic algorithms and a seed; restore the global state at the end."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by CUDA
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
    """Return the indices of the images of each step of an epoch.

    A last batch that is not full is dropped, unless it is the only one.
    """
    order = torch.randperm(n, generator=generator_at(seed, "order", epoch))
    if n < batch_size:
        return [order]
    return list(torch.split(order[: n - n % batch_size], batch_size))


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
