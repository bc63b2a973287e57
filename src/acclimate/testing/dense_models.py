"""Tiny networks that predict every pixel: 3×8×8 images in, 4 classes out."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.functional.pixels import IGNORE_LABEL

N_CLASSES = 4
INPUT_SHAPE = (3, 8, 8)


class TinyDeepLab(nn.Module):
    """A small network with the components of DeepLabV3+.

    It has an encoder with a depthwise separable atrous convolution, a coarse branch that is
    enlarged inside, a concatenation with finer features, and a head.

    Args:
        enlarges: Whether the logits have the size of the image instead of half of it.
        pools: Whether there is a branch that pools the whole image into one pixel.
    """

    def __init__(self, enlarges: bool = False, pools: bool = False) -> None:
        super().__init__()
        self.enlarges = enlarges
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
        )
        self.atrous = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8, bias=False),
            nn.Conv2d(8, 8, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
        )
        self.coarse = nn.Sequential(
            nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        )
        self.pool: nn.Module | None = None
        if pools:
            self.pool = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)
            )
        self.fuse = nn.Sequential(
            nn.Conv2d(32 if pools else 24, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        )
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Conv2d(8, N_CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.stem(x)
        branches = [fine, self.atrous(fine), _enlarge(F.relu(self.coarse(fine)), fine)]
        if self.pool is not None:
            branches.append(_enlarge(self.pool(fine), fine))
        features = F.relu(self.fuse(torch.cat(branches, dim=1)))
        logits: Tensor = self.head(self.dropout(features))
        return _enlarge(logits, x) if self.enlarges else logits


def _enlarge(maps: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(maps, like.shape[2:], mode="bilinear", align_corners=False)


#: Models that predict every pixel, by name.
DENSE_MODELS: dict[str, Callable[[], nn.Module]] = {
    "dense": TinyDeepLab,
    "dense_pooling": lambda: TinyDeepLab(enlarges=True, pools=True),
}


def tiny_masks(
    n_batches: int, batch_size: int = 8, seed: int = 0, dtype: torch.dtype = torch.float32
) -> list[tuple[Tensor, Tensor]]:
    """Return batches of images and masks: squares whose colour depends on their class.

    Some pixels have no label.
    """
    generator = torch.Generator().manual_seed(seed)
    palette = torch.rand(N_CLASSES, 3, generator=torch.Generator().manual_seed(1))
    batches = []
    for _ in range(n_batches):
        squares = torch.randint(N_CLASSES, (batch_size, 4, 4), generator=generator)
        y = squares.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
        noise = torch.rand(batch_size, *INPUT_SHAPE, generator=generator)
        x = 0.5 * palette[y].permute(0, 3, 1, 2) + 0.5 * noise
        unknown = torch.rand(y.shape, generator=generator) < 0.1
        batches.append((x.to(dtype), y.masked_fill(unknown, IGNORE_LABEL)))
    return batches
