"""DeepLabV3+ over a small encoder.

Chen et al., "Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation",
ECCV 2018, https://arxiv.org/abs/1802.02611.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.builtin.model import ImageModel
from acclimate.zoo.segmentation.efficientnet_lite import MEAN, STD, WIDTHS, EfficientNetLite0


def _pointwise(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(n_in, n_out, 1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU())


def _separable(n_in: int, n_out: int, dilation: int = 1) -> nn.Sequential:
    """Return a 3×3 filter for each channel, with holes, and what mixes the channels."""
    each = nn.Conv2d(n_in, n_in, 3, 1, dilation, dilation, groups=n_in, bias=False)
    return nn.Sequential(each, nn.BatchNorm2d(n_in), nn.ReLU(), *_pointwise(n_in, n_out))


class AtrousPyramid(nn.Module):
    """Features of several reaches side by side: a pixel, three sizes of holes, the whole image.

    The mean of the whole image is one value a channel and image, hence that branch has no
    BatchNorm: in the small batches of test time its statistics would be of one or two values.
    """

    def __init__(self, n_in: int, n_out: int, rates: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [_pointwise(n_in, n_out), *(_separable(n_in, n_out, rate) for rate in rates)]
        )
        self.pooled = nn.Sequential(nn.Conv2d(n_in, n_out, 1), nn.ReLU())
        self.project = nn.Sequential(
            *_pointwise(n_out * (len(rates) + 2), n_out), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = [branch(x) for branch in self.branches]
        whole = self.pooled(x.mean(dim=(2, 3), keepdim=True))
        parts.append(whole.expand(-1, -1, *x.shape[2:]))
        return self.project(torch.cat(parts, dim=1))  # type: ignore[no-any-return]


class DeepLab(ImageModel):
    """DeepLabV3+ with EfficientNet-Lite0, for images in [0, 1], which it normalises itself.

    Logits are at a quarter of the size of the image, as the head makes them; whoever compares them
    with labels enlarges them. The name of the head is `head`. `rates` are the distances between the
    taps of the pyramid's filters, at a sixteenth of the size.
    """

    def __init__(
        self,
        n_classes: int,
        width: int = 128,
        rates: Sequence[int] = (2, 4, 6),
        dropout: float = 0.1,
    ) -> None:
        super().__init__(MEAN, STD)
        self.encoder = EfficientNetLite0()
        self.pyramid = AtrousPyramid(WIDTHS[-1], width, rates, dropout)
        self.skip = _pointwise(WIDTHS[1], 32)
        self.merge = nn.Sequential(_separable(width + 32, width), _separable(width, width))
        self.head = nn.Conv2d(width, n_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (n, n_classes, height // 4, width // 4)."""
        fine, coarse = self.encoder(self.normalize(x))
        wide = F.interpolate(self.pyramid(coarse), fine.shape[2:], mode="bilinear")
        merged = self.merge(torch.cat([wide, self.skip(fine)], dim=1))
        return self.head(merged)  # type: ignore[no-any-return]
