"""What is minimised: cross entropy on every pixel, and selective whitening if asked for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.data.mask_files import IGNORE
from acclimate.functional.pixels import resize_maps
from acclimate.functional.views import Blur, ColorJitter, Views
from acclimate.streams.images import Size
from acclimate.training.segmentation.augment import crop_and_flip
from acclimate.training.segmentation.isw import SelectiveWhitening
from acclimate.training.segmentation.settings import SegmentationSettings

#: What makes the other view of an image whose covariances are compared: its colours, its sharpness.
PHOTOMETRIC = Views((ColorJitter(0.8, 0.8, 0.8, 0.3), Blur(5, (0.3, 1.5), 0.5)))


def pixel_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross entropy over all pixels that have a class; zero if none has.

    Args:
        logits: (n, classes, h, w); enlarged to the size of the labels.
        y: (n, height, width), 255 where nothing counts.
    """
    maps = resize_maps(logits.float(), y.shape[1:])
    total = F.cross_entropy(maps, y, ignore_index=IGNORE, reduction="sum")
    return total / (y != IGNORE).sum().clamp_min(1)


class DenseTrained(nn.Module):
    """From images and masks to the loss, in one module.

    Args:
        model: Takes images in [0, 1] and returns logits (n, classes, h, w).
        settings: Of the run.
        size: Height and width of the images.

    Raises:
        UnsuitableModel: Selective whitening is asked for, and the model has no layer for it.
    """

    def __init__(self, model: nn.Module, settings: SegmentationSettings, size: Size) -> None:
        super().__init__()
        self.model = model
        self.whitening = SelectiveWhitening(model, settings.isw_clusters) if settings.isw else None
        self._weight, self._crop = settings.isw_weight, settings.crop(size)
        self._scales = (settings.smallest_scale, settings.largest_scale)
        strength = settings.jitter
        self._jitter = Views((ColorJitter(strength, strength, strength, min(strength / 4, 0.5)),))

    def forward(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch, and the whitening loss in it before it is weighed.

        Args:
            x: Images as stored, uint8, (n, 3, height, width).
            y: Class numbers, (n, height, width).
            generator: On the CPU; the only source of random draws besides dropout's.
        """
        x, y = self._augment(x, y, generator)
        x = self._jitter(x, generator).contiguous(memory_format=torch.channels_last)
        if self.whitening is None or not bool(self.whitening.is_selected):
            loss = pixel_cross_entropy(self.model(x), y)
            return loss, loss.new_zeros(())
        with self.whitening.watch(self.model) as taken:
            loss = pixel_cross_entropy(self.model(x), y)
        penalty = self.whitening(taken)
        return loss + self._weight * penalty, penalty.detach()

    def observe(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Show images, cropped, and their photometric views to the selection of pairs."""
        if self.whitening is not None:
            x, _ = self._augment(x, y, generator)
            self.whitening.observe(self.model, x, PHOTOMETRIC(x, generator))

    def _augment(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return crop_and_flip(x.float() / 255, y, self._crop, self._scales, generator)
