"""Training for segmentation: a class for every pixel."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.functional.pixels import count_pixels, find_ious, resize_maps
from acclimate.functional.rng import generator_at
from acclimate.storage import file_digest
from acclimate.training.checkpoint import RunFiles, write_weights
from acclimate.training.results import SegmentationResult
from acclimate.training.segmentation.objective import PHOTOMETRIC, PixelObjective
from acclimate.training.sets import ImageStore, load_mask_sets
from acclimate.training.settings import SegmentationSettings
from acclimate.training.trainer import (
    Progress,
    Task,
    Trained,
    check_logits,
    first_images,
    predict_share,
    share,
)
from acclimate.zoo.segmentation import build_dense
from acclimate.zoo.segmentation.catalog import TASK

_CHECK_BATCH = 4


class Segmentation(Task[SegmentationResult]):
    """Cross entropy on pixels, by AdamW; every mask is checked before the first step.

    Args:
        settings: Of the run.
        root: Of all data.
    """

    objective: PixelObjective
    settings: SegmentationSettings

    def __init__(self, settings: SegmentationSettings, root: str | Path | None) -> None:
        self.settings, self.n_epochs = settings, settings.epochs
        self.data, self.held = load_mask_sets(settings, root)

    def identify(self) -> dict[str, Any]:
        return {
            "task": TASK,
            "settings": self.settings.to_dict(),
            "whitening": self.settings.objective == "isw",
            "data": self.data.description,
            "validation": self.held.description,
            "classes": list(self.data.classes),
            "photometric": PHOTOMETRIC.to_dict(),
        }

    def verify(self, progress: Progress | None) -> None:
        for images in (self.data, self.held):
            images.verify(progress)

    def build(self) -> Trained:
        settings, n_classes, x = self.settings, len(self.data.classes), first_images(self.data)
        whitening = settings.objective == "isw"
        model = build_dense(
            settings.model, n_classes, pretrained=settings.pretrained, whitening=whitening
        )
        check_logits(model, settings.model, x, n_classes, per_pixel=True)
        self.objective = PixelObjective(model, settings, (x.shape[2], x.shape[3]))
        return Trained(model, self.objective)

    def make_optimizer(self) -> torch.optim.Optimizer:
        parameters, settings = self.trained.parameters(), self.settings
        return torch.optim.AdamW(parameters, settings.lr, weight_decay=settings.weight_decay)

    def rate(self, step: int, n_steps: int) -> float:
        return polynomial_rate(self.settings, step, self.n_epochs * n_steps)

    def begin(self, fabric: Any, epoch: int, progress: Progress | None) -> None:
        if self.settings.objective == "isw" and epoch >= self.settings.isw_warmup_epochs:
            self._choose_pairs(fabric, progress)

    def _choose_pairs(self, fabric: Any, progress: Progress | None) -> None:
        """Show all training images to the selection of pairs, once, unless they are chosen."""
        whitening = self.objective.whitening
        if whitening is None or bool(whitening.is_selected):
            return
        self.trained.eval()
        picks = share(torch.split(torch.arange(len(self.data)), self.settings.batch_size), fabric)
        for number, (x, y) in enumerate(self.data.batches(picks)):
            draws = generator_at(self.settings.seed, "covariances", number, fabric.global_rank)
            with fabric.autocast():
                batch = x.to(fabric.device), y.to(fabric.device)
                self.objective.observe(self.trained.model, *batch, draws)
            if progress is not None:
                progress("compare covariances", number + 1, len(picks))
        for name, buffer in whitening.named_buffers():
            if name == "n_seen" or name.startswith("variance"):
                buffer.copy_(fabric.all_reduce(buffer, reduce_op="sum"))
        whitening.select()

    def end(
        self, fabric: Any, figures: dict[str, Any], progress: Progress | None
    ) -> dict[str, Any]:
        line = {name: figures[name] for name in ("epoch", "loss", "penalty", "minutes")}
        epoch = line["epoch"]
        if epoch < self.n_epochs and epoch % self.settings.check_every:
            return line
        ious = measure(fabric, self.trained.model, self.held, progress).tolist()
        percent = [None if math.isnan(iou) else round(100 * iou, 4) for iou in ious]
        found = [value for value in percent if value is not None]
        named = dict(zip(self.held.classes, percent, strict=True))
        return {**line, "miou": round(sum(found) / len(found), 4), "ious": named}

    def finish(
        self, fabric: Any, log: list[dict[str, Any]], progress: Progress | None
    ) -> dict[str, Any]:
        last = {name: log[-1][name] for name in ("miou", "ious")}
        return {**last, "loss": [line["loss"] for line in log]}

    def write(self, files: RunFiles, card: dict[str, Any], device: torch.device) -> None:
        weights = self.trained.model.state_dict()
        write_weights(files.out, weights, self.settings.model, card, device, TASK)

    def read_result(self, path: Path, done: dict[str, Any], was_done: bool) -> SegmentationResult:
        return SegmentationResult(
            path=path,
            sha256=file_digest(path),
            miou=done["miou"],
            ious=done["ious"],
            losses=tuple(done["loss"]),
            minutes=done["minutes"],
            was_done=was_done,
        )


def polynomial_rate(settings: SegmentationSettings, step: int, n_steps: int) -> float:
    """Return the learning rate of a step, from 0.

    >>> settings = SegmentationSettings(model="builtin-scenes", data="builtin-scenes", lr=0.1)
    >>> polynomial_rate(settings, 0, 100), round(polynomial_rate(settings, 50, 100), 4)
    (0.1, 0.0536)
    """
    return settings.lr * math.pow(1 - step / n_steps, settings.power)


def measure(
    fabric: Any, model: nn.Module, data: ImageStore, progress: Progress | None = None
) -> Tensor:
    """Return the intersection over union of each class, in full precision.

    Args:
        fabric: What `make_fabric` gave.
        model: On the device; it is in evaluation mode afterwards.
        data: To measure on.
        progress: Called with the stage, the count done and the count to do.
    """
    n_classes = len(data.classes)
    counts = torch.zeros(n_classes, n_classes, dtype=torch.int64)
    for logits, y in predict_share(fabric, model, data, _CHECK_BATCH, "validate", progress):
        predicted = resize_maps(logits.float(), y.shape[1:]).argmax(dim=1)
        counts += count_pixels(predicted.cpu(), y, n_classes)
    return find_ious(fabric.all_reduce(counts, reduce_op="sum"))
