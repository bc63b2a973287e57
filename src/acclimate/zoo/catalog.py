"""The source models that have a name here: architecture, normalisation, and where weights are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from acclimate.builtin.model import WideResNet
from acclimate.errors import check_name
from acclimate.functional.inputs import NORMALIZATIONS
from acclimate.zoo.resnet import (
    BasicBlock,
    Bottleneck,
    CifarResNet,
    PreactivationResNet,
    ResNet,
    ShortResNet,
    WideStemResNet,
)

Channels = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The entry of one source model.

    Attributes:
        name: its name in the zoo.
        data: the training set.
        architecture: the name of the architecture in its publication.
        factory: builds it from `n_classes`, `mean` and `std`.
        n_classes: number of logits of the published weights.
        mean: mean of each channel; the model takes images in [0, 1] and normalises inside.
        std: standard deviation of each channel.
        layout: how the published file names its tensors, a key of `acclimate.zoo.readers.LAYOUTS`.
        description: one sentence.
        publisher: who published the weights; empty if unpublished.
        address: URL of the weights.
        accuracy: accuracy on the clean test set in percent, as published, or otherwise as measured
            with the published weights.
        licence: licence of the weights.
        sha256: SHA-256 of the published file, or its beginning, if known.
        content_sha256: digest of the weights, independent of the file format, if known; see
            `acclimate.zoo.readers.content_digest`. Without both, a file is not verified.
        input_size: height and width of the images.
        packaged: file in `acclimate/zoo/weights`, if the weights come with the package.
    """

    name: str
    data: str
    architecture: str
    factory: Callable[..., nn.Module]
    n_classes: int
    mean: Channels
    std: Channels
    layout: str
    description: str
    publisher: str = ""
    address: str = ""
    accuracy: float | None = None
    licence: str = ""
    sha256: str = ""
    content_sha256: str = ""
    input_size: int = 32
    packaged: str = ""

    def build(self, n_classes: int | None = None) -> nn.Module:
        """Return the architecture with fresh weights."""
        n_classes = self.n_classes if n_classes is None else n_classes
        return self.factory(n_classes=n_classes, mean=self.mean, std=self.std)


def get_spec(name: str, n_classes: int | None = None) -> ModelSpec:
    """Return the entry of a model.

    An architecture alone, such as `resnet20`, stands for the entry of that many classes, or else
    for that of CIFAR-10.

    >>> get_spec("resnet20").name, get_spec("wrn40-2", n_classes=100).name
    ('resnet20-cifar10', 'wrn40-2-cifar100')
    """
    if name in CATALOG:
        return CATALOG[name]
    specs = [spec for spec in CATALOG.values() if spec.name.rpartition("-")[0] == name]
    if not specs:
        other = " Pass other models as timm:NAME, torchvision:NAME or package.module:function."
        check_name(name, CATALOG, "model", advice=other)
    return min(specs, key=lambda spec: (spec.n_classes != n_classes, spec.n_classes != 10))


_IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_HALF: tuple[Channels, Channels] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_CIFAR10 = NORMALIZATIONS["cifar10"]
_DRIVE = "https://drive.google.com/uc?export=download&confirm=t&id="


def _make(
    name: str,
    architecture: str,
    factory: Callable[..., nn.Module],
    normalization: tuple[Channels, Channels],
    **known: Any,
) -> ModelSpec:
    """Return a spec; the name ends in the data: `cifar` and the number of classes."""
    n_classes = int(name.rpartition("cifar")[2])
    mean, std = normalization
    return ModelSpec(
        name=name,
        data=f"CIFAR-{n_classes}",
        architecture=architecture,
        factory=factory,
        n_classes=n_classes,
        mean=mean,
        std=std,
        **known,
    )


def _robustbench(
    depth: int, width: int, n_classes: int, drive_id: str, accuracy: float, **known: Any
) -> ModelSpec:
    trained = '"Hendrycks2020AugMix_WRN" of RobustBench: trained with AugMix.'
    return _make(
        f"wrn{depth}-{width}-cifar{n_classes}",
        f"WRN-{depth}-{width}",
        partial(WideResNet, depth=depth, width=width),
        known.pop("normalization", _HALF),
        layout="robustbench",
        publisher="RobustBench",
        address=f"{_DRIVE}{drive_id}",
        accuracy=accuracy,
        licence="MIT",
        **{"description": trained, **known},
    )


def _akamaster(depth: int, start: str, accuracy: float, **known: Any) -> ModelSpec:
    """Return a spec of a file that has the start of its SHA-256 in its name."""
    folder = "https://github.com/akamaster/pytorch_resnet_cifar10/raw/master/pretrained_models"
    return _make(
        f"resnet{depth}-cifar10",
        f"ResNet-{depth}",
        partial(CifarResNet, depth=depth),
        _IMAGENET,
        layout="cifar_resnet",
        description="The CIFAR form of the ResNet paper, option-A shortcuts.",
        publisher="Y. Idelbayev",
        address=f"{folder}/resnet{depth}-{start}.th",
        accuracy=accuracy,
        licence="BSD-2-Clause",
        **{"sha256": start, **known},
    )


def _distiller(depth: int, accuracy: float, content_sha256: str) -> ModelSpec:
    folder = "https://github.com/karanchahal/distiller/raw/master/pretrained"
    return _make(
        f"resnet{depth}-cifar100",
        f"ResNet-{depth}, stem of 64 channels",
        partial(WideStemResNet, depth=depth),
        ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
        layout="cifar_resnet",
        description="A variant: ReLU after stages instead of blocks, 256 features.",
        publisher="distiller",
        address=f"{folder}/resnet{depth}_cifar100.pth",
        accuracy=accuracy,
        licence="not stated",
        content_sha256=content_sha256,
    )


_IMAGENET_FORMS = {
    18: partial(ResNet, block=BasicBlock, n_blocks=(2, 2, 2, 2), widths=(64, 64, 128, 256, 512)),
    50: partial(ResNet, block=Bottleneck, n_blocks=(3, 4, 6, 3), widths=(64, 256, 512, 1024, 2048)),
}
# What TTT++ normalises with; not the statistics of the sets in `functional.inputs`.
_TTT_PLUS_PLUS: dict[int, tuple[Channels, Channels]] = {
    10: ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    100: ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}


def _ttt_plus_plus(depth: int, n_classes: int, drive_id: str = "") -> ModelSpec:
    used = "trained with a contrastive loss beside" if drive_id else "as in TTT++, no weights known"
    return _make(
        f"resnet{depth}-cifar{n_classes}",
        f"ResNet-{depth}, 3×3 stem",
        _IMAGENET_FORMS[depth],
        _TTT_PLUS_PLUS[n_classes],
        layout="ttt_plus_plus",
        description=f"The ImageNet form with a 3×3 stem and no pooling after it, {used}.",
        publisher="TTT++" if drive_id else "",
        address=f"{_DRIVE}{drive_id}" if drive_id else "",
        licence="not stated" if drive_id else "",
    )


_SPECS = (
    _robustbench(
        28,
        10,
        10,
        "1t98aEuzeTL8P7Kpd5DIrCoCL21BNZUhC",
        94.78,
        normalization=((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        description='"Standard" of RobustBench: plain training, inputs not normalised.',
        sha256="6ed1c75dad63e8ebdbef365020dd1a7eee5e79cf8a1438bd3bdc3b9c7aab3d44",
    ),
    _robustbench(40, 2, 10, "1wy7gSRsUZzCzj8QhmTbcnwmES_2kkNph", 95.08),
    _robustbench(40, 2, 100, "1XpFFdCdU9LcDtcyNfo6_BV1RZHKKkBVE", 76.28),
    _akamaster(
        20,
        "12fca82f",
        91.73,
        sha256="12fca82f0bebc4135bf1f32f6e3710e61d5108578464b84fd6d7f5c1b04036c8",
        content_sha256="d448f6c614fd8866d88e6e41d24fef52b190de51ef30672ddcaa759aebe14968",
    ),
    _akamaster(
        32,
        "d509ac18",
        92.63,
        sha256="d509ac1820d7f25398913559d7e81a13229b1e7adc5648e3bfa5e22dc137f850",
    ),
    _akamaster(44, "014dd654", 93.10),
    _akamaster(
        56,
        "4bfd9763",
        93.39,
        sha256="4bfd97631478d6b638d2764fd2baff3edb1d7d82252d54439343b6596b9b5367",
        content_sha256="55666d480b78f0ea1b816738c8e9cb72a1759c400beb153530108320f665cd4f",
    ),
    _distiller(20, 69.69, "965e1df41677ed0718cf905b41d444c6a068b6c4694554d9a9c8944bec5b9c77"),
    _distiller(32, 71.70, "30c092486aa49983f8f17215d122903b3bcfdd47e683087b4bedc2613a7ec407"),
    _make(
        "resnet26-cifar10",
        "ResNet-26, pre-activation, batch normalisation",
        partial(PreactivationResNet, depth=26),
        _HALF,
        layout="ttt",
        description="The network of TTT; no weights known.",
    ),
    _make(
        "resnet26-gn-cifar10",
        "ResNet-26, pre-activation, group normalisation (8)",
        partial(PreactivationResNet, depth=26, n_groups=8),
        _HALF,
        layout="ttt",
        description="The network of MEMO.",
        publisher="MEMO",
        address="https://github.com/zhangmarvin/memo/raw/main/cifar-10-exps/results/"
        "cifar10_rn26_gn/ckpt.pth",
        licence="MIT",
    ),
    _make(
        "resnet9-cifar10",
        "ResNet-9, 16 to 112 channels",
        ShortResNet,
        (_CIFAR10.mean, _CIFAR10.std),
        layout="cifar_resnet",
        description="A small net that comes with the package, made by `acclimate train --model "
        "resnet9-cifar10 --data cifar10 --epochs 20 --warmup-epochs 2.0`.",
        publisher="acclimate",
        licence="Apache-2.0",
        packaged="resnet9-cifar10.safetensors",
        accuracy=89.36,
        content_sha256="b7a0701fd81ffb97a98ceb7f28760e4e26d12e33eabbd2796fae0b18df8ac22d",
    ),
    _ttt_plus_plus(18, 10),
    _ttt_plus_plus(18, 100),
    _ttt_plus_plus(50, 10, "1TWiFJY_q5uKvNr9x3Z4CiK2w9Giqk9Dx"),
    _ttt_plus_plus(50, 100, "1-8KNUXXVzJIPvao-GxMp2DiArYU9NBRs"),
)

CATALOG: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}
