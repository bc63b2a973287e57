"""The training loop for segmentation, and the look at the validation images."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.data.masks import LabelledPixels
from acclimate.data.places import Progress
from acclimate.errors import InvalidConfig
from acclimate.training.checkpoint import Position
from acclimate.training.draws import batch_order, generator_at, seed_of
from acclimate.training.segmentation.confusion import count_pixels, enlarge, find_ious
from acclimate.training.segmentation.objective import DenseTrained
from acclimate.training.segmentation.settings import SegmentationSettings

_CHECK_BATCH = 4


def run_epochs(
    fabric: Any,
    wrapped: Any,
    trained: DenseTrained,
    optimizer: Any,
    data: LabelledPixels,
    settings: SegmentationSettings,
    position: Position,
    *,
    keep: Callable[[], None],
    log: Callable[[dict[str, Any]], None],
    save_every: int,
    progress: Progress | None = None,
) -> None:
    """Train from a position to the end.

    Args:
        fabric: What `make_fabric` gave.
        wrapped: `trained`, set up by Fabric.
        trained: The module itself.
        optimizer: Set up by Fabric.
        data: To train on.
        settings: Of the run.
        position: Where to begin; it is kept up to date.
        keep: Called when the position is to be kept: at every epoch's end, and now and then.
        log: Called with the figures of each epoch.
        save_every: Steps between two calls of `keep` within an epoch.
        progress: Called with the stage, the count done and the count to do.
    """
    n_steps = len(batch_order(len(data), settings.batch_size, settings.seed, 0))
    n_all = settings.epochs * n_steps
    before, began = position.seconds, time.perf_counter()
    rank, n_ranks = fabric.global_rank, fabric.world_size
    while position.epoch < settings.epochs:
        epoch = position.epoch
        if settings.isw and epoch >= settings.isw_warmup_epochs:
            choose_pairs(fabric, trained, data, settings, progress)
        trained.train()
        order = batch_order(len(data), settings.batch_size, settings.seed, epoch)
        own = [picks[rank::n_ranks] for picks in order[position.step :]]
        for x, y in data.batches(own):
            place = (epoch, position.step, rank)
            rate = settings.rate(epoch * n_steps + position.step, n_all)
            for group in optimizer.param_groups:
                group["lr"] = rate
            # Dropout and its like draw from the global generators, which know no place.
            torch.manual_seed(seed_of(settings.seed, "layers", *place))
            draws = generator_at(settings.seed, "augmentation", *place)
            optimizer.zero_grad()
            loss, penalty = wrapped(x.to(fabric.device), y.to(fabric.device), draws)
            fabric.backward(loss)
            optimizer.step()
            _count(position, float(loss.detach()), float(penalty), rate)
            position.seconds = before + time.perf_counter() - began
            if progress is not None:
                progress("train", epoch * n_steps + position.step, n_all)
            if position.step % save_every == 0 and position.step < n_steps:
                keep()
        sums = torch.tensor([position.loss_sum, position.penalty_sum], dtype=torch.float64)
        loss_mean, penalty_mean = (fabric.all_reduce(sums, reduce_op="mean") / n_steps).tolist()
        position.epoch, position.step = epoch + 1, 0
        position.loss_sum = position.penalty_sum = 0.0
        figures = {"epoch": epoch + 1, "loss": loss_mean, "penalty": penalty_mean}
        log({**figures, "minutes": round(position.seconds / 60, 2)})
        position.seconds = before + time.perf_counter() - began
        keep()


def choose_pairs(
    fabric: Any,
    trained: DenseTrained,
    data: LabelledPixels,
    settings: SegmentationSettings,
    progress: Progress | None = None,
) -> None:
    """Show all training images to the selection of pairs, once, unless they are chosen already.

    Args:
        fabric: What `make_fabric` gave.
        trained: Whose selection it is; it is in evaluation mode afterwards.
        data: To train on.
        settings: Of the run.
        progress: Called with the stage, the count done and the count to do.
    """
    whitening = trained.whitening
    if whitening is None or bool(whitening.is_selected):
        return
    trained.eval()
    picks = list(torch.split(torch.arange(len(data)), settings.batch_size))
    own = picks[fabric.global_rank :: fabric.world_size]
    for number, (x, y) in enumerate(data.batches(own)):
        draws = generator_at(settings.seed, "covariances", number, fabric.global_rank)
        with fabric.autocast():
            trained.observe(x.to(fabric.device), y.to(fabric.device), draws)
        if progress is not None:
            progress("compare covariances", number + 1, len(own))
    for name, buffer in whitening.named_buffers():
        if name == "n_seen" or name.startswith("variance"):
            buffer.copy_(fabric.all_reduce(buffer, reduce_op="sum"))
    whitening.select()


def _count(position: Position, loss: float, penalty: float, rate: float) -> None:
    if not math.isfinite(loss):
        raise InvalidConfig(
            f"the loss became {loss} in step {position.step + 1} of epoch {position.epoch + 1}, "
            f"at a learning rate of {rate:.3g}. Give a smaller --lr."
        )
    position.step += 1
    position.loss_sum += loss
    position.penalty_sum += penalty


@torch.no_grad()
def measure(
    fabric: Any, model: nn.Module, data: LabelledPixels, progress: Progress | None = None
) -> Tensor:
    """Return the intersection over union of each class, in full precision.

    Args:
        fabric: What `make_fabric` gave.
        model: On the device; it is in evaluation mode afterwards.
        data: To measure on.
        progress: Called with the stage, the count done and the count to do.
    """
    model.eval()
    n_classes = len(data.classes)
    counts = torch.zeros(n_classes, n_classes, dtype=torch.int64)
    picks = list(torch.split(torch.arange(len(data)), _CHECK_BATCH))
    own = picks[fabric.global_rank :: fabric.world_size]
    for number, (x, y) in enumerate(data.batches(own), start=1):
        logits = enlarge(model(x.to(fabric.device).float() / 255).float(), y)
        counts += count_pixels(logits.argmax(dim=1).cpu(), y, n_classes)
        if progress is not None:
            progress("validate", number, len(own))
    return find_ious(fabric.all_reduce(counts, reduce_op="sum"))
