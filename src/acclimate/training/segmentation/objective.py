"""What is minimised: cross entropy on every pixel, and selective whitening if asked for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.functional.pixels import resize_maps
from acclimate.functional.views import Blur, ColorJitter, Views
from acclimate.streams.images import Size
from acclimate.training.objectives import Objective
from acclimate.training.segmentation.isw import SelectiveWhitening
from acclimate.training.sets import IGNORE
from acclimate.training.settings import SegmentationSettings

#: What makes the other view of an image whose covariances are compared: its colours, its sharpness.
PHOTOMETRIC = Views((ColorJitter(0.8, 0.8, 0.8, 0.3), Blur(5, (0.3, 1.5), 0.5)))


def crop_and_flip(
    x: Tensor, y: Tensor, size: Size, scales: tuple[float, float], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return a random part of each image, at a random scale, half of them mirrored.

    What lies outside of an image is black, and ignored.

    Args:
        x: Images in [0, 1], (n, 3, height, width).
        y: Class numbers, (n, height, width).
        size: Height and width of what is returned.
        scales: Smallest and largest enlargement.
        generator: On the CPU.
    """
    n, _, height, width = x.shape
    draws = torch.rand(n, 4, generator=generator)
    scale = scales[0] + draws[:, 0] * (scales[1] - scales[0])
    # Both axes run from −1 to 1: how far the part reaches, and by how much it may be off centre.
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
    return images, labels.masked_fill(labels < 0, IGNORE)


def pixel_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross entropy over all pixels that have a class; zero if none has.

    Args:
        logits: (n, classes, h, w); enlarged to the size of the labels.
        y: (n, height, width), 255 where nothing counts.
    """
    maps = resize_maps(logits.float(), y.shape[1:])
    total = F.cross_entropy(maps, y, ignore_index=IGNORE, reduction="sum")
    return total / (y != IGNORE).sum().clamp_min(1)


class PixelObjective(Objective):
    """Cross entropy on crops in random colours, and selective whitening for the objective isw.

    Args:
        model: Takes images in [0, 1] and returns logits (n, classes, h, w).
        settings: Of the run.
        size: Height and width of the images.

    Raises:
        UnsuitableModel: Selective whitening is asked for, and the model has no layer for it.
    """

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
        """Return the loss, and the whitening loss in it before it is weighted."""
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
