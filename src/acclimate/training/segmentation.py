"""Training for segmentation, a class for every pixel: cross entropy, and ISW as in RobustNet.

settings = SegmentationSettings(
    model="deeplabv3plus-efficientnet-lite0", data="camvid", objective="isw", pretrained=True
)
train(settings, "camvid-isw.safetensors").miou            # on the split val
model = load_dense("camvid-isw.safetensors")         # of acclimate.zoo.segmentation
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.functional.pixels import IGNORE_LABEL, count_pixels, find_ious, resize_maps
from acclimate.functional.rng import generator_at
from acclimate.functional.views import Blur, ColorJitter, Views
from acclimate.storage import file_digest
from acclimate.streams.images import Size
from acclimate.training.checkpoint import write_weights
from acclimate.training.isw import SelectiveWhitening
from acclimate.training.objectives import Objective
from acclimate.training.sets import load_mask_sets
from acclimate.training.settings import SegmentationResult, SegmentationSettings
from acclimate.training.trainer import Task, Trained, check_logits, first_images
from acclimate.zoo.segmentation import build_dense
from acclimate.zoo.segmentation.catalog import TASK

_CHECK_BATCH = 4

#: The other view of an image whose covariances are compared differs in colours and sharpness.
PHOTOMETRIC = Views((ColorJitter(0.8, 0.8, 0.8, 0.3), Blur(5, (0.3, 1.5), 0.5)))


def crop_and_flip(
    x: Tensor, y: Tensor, size: Size, scales: tuple[float, float], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return a random part of each image, at a random scale, half of them mirrored.

    Pixels outside of the image are black and have the label to ignore. `scales` are the smallest
    and the largest scale factor.
    """
    n, _, height, width = x.shape
    draws = torch.rand(n, 4, generator=generator)
    scale = scales[0] + draws[:, 0] * (scales[1] - scales[0])
    # Both axes run from −1 to 1: half the size of the part, and its distance from the centre.
    reach = torch.stack([size[1] / (width * scale), size[0] / (height * scale)], dim=1)
    offset = (2 * draws[:, 1:3] - 1) * (1 - reach).abs()
    mirrored = torch.where(draws[:, 3] < 0.5, -1.0, 1.0)
    maps = torch.zeros(n, 2, 3)
    maps[:, 0, 0], maps[:, 0, 2] = reach[:, 0] * mirrored, offset[:, 0]
    maps[:, 1, 1], maps[:, 1, 2] = reach[:, 1], offset[:, 1]
    grid = F.affine_grid(maps.to(x.device), [n, 3, *size], align_corners=False)
    images = F.grid_sample(x, grid, align_corners=False)
    # One more than the label, for outside is zero.
    shifted = F.grid_sample(y[:, None].float() + 1, grid, "nearest", align_corners=False)
    labels = shifted[:, 0].round().long() - 1
    return images, labels.masked_fill(labels < 0, IGNORE_LABEL)


def pixel_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross entropy over all pixels that have a class; zero if none has.

    Logits are enlarged to the size of the labels; 255 is ignored.
    """
    maps = resize_maps(logits.float(), y.shape[1:])
    total = F.cross_entropy(maps, y, ignore_index=IGNORE_LABEL, reduction="sum")
    return total / (y != IGNORE_LABEL).sum().clamp_min(1)


class PixelObjective(Objective):
    """Cross entropy on crops in random colours, and selective whitening for the objective isw."""

    def __init__(self, model: nn.Module, settings: SegmentationSettings, size: Size) -> None:
        super().__init__()
        uses_isw = settings.objective == "isw"
        self.whitening = SelectiveWhitening(model, settings.isw_clusters) if uses_isw else None
        self._weight = settings.isw_weight
        self._crop = (settings.crop_height or size[0], settings.crop_width or size[1])
        self._scales = (settings.smallest_scale, settings.largest_scale)
        strength = settings.jitter
        self._jitter = Views((ColorJitter(strength, strength, strength, min(strength / 4, 0.5)),))

    def forward(
        self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        x, y = self._augment(x, y, generator)
        x = self._jitter(x, generator).contiguous(memory_format=torch.channels_last)
        if self.whitening is None or not bool(self.whitening.is_selected):
            loss = pixel_cross_entropy(model(x), y)
            return loss, loss.new_zeros(())
        with self.whitening.watch(model) as taken:
            loss = pixel_cross_entropy(model(x), y)
        penalty = self.whitening(taken)
        return loss + self._weight * penalty, penalty.detach()

    def observe(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Show images, cropped, and their photometric views to the selection of pairs."""
        if self.whitening is not None:
            x, _ = self._augment(x, y, generator)
            self.whitening.observe(model, x, PHOTOMETRIC(x, generator))

    def _augment(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return crop_and_flip(x.float() / 255, y, self._crop, self._scales, generator)


class Segmentation(Task[SegmentationResult]):
    """Cross entropy on pixels, by AdamW; every mask is checked before the first step."""

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

    def verify(self) -> None:
        for images in (self.data, self.held):
            images.verify(self.progress)

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

    def begin(self, epoch: int) -> None:
        """Show all training images to the selection of pairs, once, after the warm-up."""
        whitening, fabric = self.objective.whitening, self.fabric
        is_early = epoch < self.settings.isw_warmup_epochs
        if whitening is None or is_early or bool(whitening.is_selected):
            return
        self.trained.eval()
        picks = self.share(torch.split(torch.arange(len(self.data)), self.settings.batch_size))
        for number, (x, y) in enumerate(self.data.batches(picks)):
            draws = generator_at(self.settings.seed, "covariances", number, fabric.global_rank)
            with fabric.autocast():
                batch = x.to(fabric.device), y.to(fabric.device)
                self.objective.observe(self.trained.model, *batch, draws)
            self.report("compare covariances", number + 1, len(picks))
        for name, buffer in whitening.named_buffers():
            if name == "n_seen" or name.startswith("variance"):
                buffer.copy_(fabric.all_reduce(buffer, reduce_op="sum"))
        whitening.select()

    def end(self, figures: dict[str, Any]) -> dict[str, Any]:
        line = {name: figures[name] for name in ("epoch", "loss", "penalty", "minutes")}
        epoch = line["epoch"]
        if epoch < self.n_epochs and epoch % self.settings.check_every:
            return line
        ious = self._find_ious().tolist()
        percent = [None if math.isnan(iou) else round(100 * iou, 4) for iou in ious]
        found = [value for value in percent if value is not None]
        named = dict(zip(self.held.classes, percent, strict=True))
        return {**line, "miou": round(sum(found) / len(found), 4), "ious": named}

    def _find_ious(self) -> Tensor:
        n_classes = len(self.held.classes)
        counts = torch.zeros(n_classes, n_classes, dtype=torch.int64)
        for logits, y in self.predict(self.held, _CHECK_BATCH, "validate"):
            predicted = resize_maps(logits.float(), y.shape[1:]).argmax(dim=1)
            counts += count_pixels(predicted.cpu(), y, n_classes)
        return find_ious(self.fabric.all_reduce(counts, reduce_op="sum"))

    def finish(self) -> dict[str, Any]:
        last = {name: self.log[-1][name] for name in ("miou", "ious")}
        return {**last, "loss": [line["loss"] for line in self.log]}

    def write(self, out: Path, card: dict[str, Any]) -> None:
        weights, name = self.trained.model.state_dict(), self.settings.model
        write_weights(out, weights, name, card, self.fabric.device, TASK)

    def read_result(self, path: Path, done: dict[str, Any], was_done: bool) -> SegmentationResult:
        known = {name: done[name] for name in ("miou", "ious", "minutes")}
        losses, digest = tuple(done["loss"]), file_digest(path)
        return SegmentationResult(
            path=path, sha256=digest, losses=losses, was_done=was_done, **known
        )


def polynomial_rate(settings: SegmentationSettings, step: int, n_steps: int) -> float:
    """Return the learning rate of a step.

    >>> settings = SegmentationSettings(model="builtin-scenes", data="builtin-scenes", lr=0.1)
    >>> polynomial_rate(settings, 0, 100), round(polynomial_rate(settings, 50, 100), 4)
    (0.1, 0.0536)
    """
    return settings.lr * math.pow(1 - step / n_steps, settings.power)
