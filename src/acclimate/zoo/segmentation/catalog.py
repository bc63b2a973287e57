"""The dense models that have a name here: how they are built, whitened, and what their head is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.builtin.scene_model import SceneNet
from acclimate.errors import ArtifactMismatch, BadInput, UnsuitableModel, check_name, import_extra
from acclimate.storage import read_file
from acclimate.zoo.external import NormalizedModel, build_external
from acclimate.zoo.readers import fit
from acclimate.zoo.segmentation.deeplab import WIDTHS, DeepLab, load_imagenet
from acclimate.zoo.segmentation.whitening import InstanceWhitening, whiten_stage, whiten_stem
from acclimate.zoo.torchvision_compat import import_torchvision

#: The task in the card of a file with a dense model.
TASK = "segmentation"

#: Suffix of the names of dense models with instance whitening, as in RobustNet.
WHITENED = "+isw"


@dataclass(frozen=True)
class DenseSpec:
    """The entry of one dense model.

    Attributes:
        name: Its name in the zoo.
        text: One sentence.
        build: Builds it from the number of classes and whether to begin with ImageNet's weights.
        whiten: Adds instance whitening after its stem and in its first stages, in place.
        head: Name of the module that computes the logits.
    """

    name: str
    text: str
    build: Callable[[int, bool], nn.Module]
    whiten: Callable[[Any], None]
    head: str = "head"


class PaddedModel(NormalizedModel):
    """A dense model of a library, for images in [0, 1] of any size.

    Images are padded at the right and below to multiples of `multiple`; the logits of the padding
    are removed. The logits have 1 / `stride` of the resolution.
    """

    def __init__(
        self, model: nn.Module, mean: Any, std: Any, multiple: int = 16, stride: int = 4
    ) -> None:
        super().__init__(model, mean, std)
        self._multiple, self._stride = multiple, stride

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (n, classes, height / stride, width / stride)."""
        height, width = x.shape[2:]
        below, right = -height % self._multiple, -width % self._multiple
        logits: Tensor = self.model(F.pad(self.normalize(x), (0, right, 0, below), "replicate"))
        return logits[..., : -(-height // self._stride), : -(-width // self._stride)]


class WhitenedBottleneck(nn.Module):
    """A bottleneck of torchvision that whitens the sum of both paths before it is rectified."""

    def __init__(self, block: Any, n_channels: int) -> None:
        super().__init__()
        self.block, self.whitening = block, InstanceWhitening(n_channels)

    def forward(self, x: Tensor) -> Tensor:
        block: Any = self.block
        inner = block.relu(block.bn2(block.conv2(block.relu(block.bn1(block.conv1(x))))))
        around = x if block.downsample is None else block.downsample(x)
        return F.relu(self.whitening(block.bn3(block.conv3(inner)) + around))


def _build_lite(n_classes: int, pretrained: bool) -> nn.Module:
    model = DeepLab(n_classes)
    if pretrained:
        load_imagenet(model.encoder)
    return model


def _whiten_lite(model: DeepLab) -> None:
    encoder = model.encoder
    encoder.stem = whiten_stem(encoder.stem)
    for place in (1, 2):  # what they give on is at a quarter and at an eighth of the size
        encoder.stages[place] = whiten_stage(encoder.stages[place], WIDTHS[place])


def _build_resnet50(n_classes: int, pretrained: bool) -> nn.Module:
    import_torchvision()
    library = import_extra(
        "segmentation_models_pytorch",
        "The model deeplabv3plus-resnet50",
        "segmentation",
        "segmentation-models-pytorch",
    )
    try:
        model = library.DeepLabV3Plus(
            "resnet50",
            encoder_weights="imagenet" if pretrained else None,
            encoder_output_stride=16,
            classes=n_classes,
            upsampling=1,
        )
    except OSError as error:
        raise BadInput(
            "weights_unavailable",
            f"The ImageNet weights of ResNet-50 cannot be downloaded ({error}). Try again with an "
            "internet connection, or train without --pretrained.",
            name="deeplabv3plus-resnet50",
        ) from error
    return PaddedModel(model, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def _whiten_resnet50(model: PaddedModel) -> None:
    encoder: Any = model.model.encoder
    encoder.bn1 = nn.Sequential(InstanceWhitening(64), encoder.bn1)
    for stage, n_channels in ((encoder.layer1, 256), (encoder.layer2, 512)):
        stage[-1] = WhitenedBottleneck(stage[-1], n_channels)


def _build_scenes(n_classes: int, pretrained: bool) -> nn.Module:
    if pretrained:
        raise BadInput(
            "not_applicable",
            "The model builtin-scenes has no ImageNet weights. Remove --pretrained.",
            option="pretrained",
        )
    return SceneNet(n_classes)


def _whiten_scenes(model: SceneNet) -> None:
    model.stem = whiten_stem(model.stem)


_SPECS = (
    DenseSpec(
        "deeplabv3plus-efficientnet-lite0",
        "DeepLabV3+ with EfficientNet-Lite0, small enough to be trained and adapted on a CPU",
        _build_lite,
        _whiten_lite,
    ),
    DenseSpec(
        "deeplabv3plus-resnet50",
        "DeepLabV3+ with ResNet-50, of segmentation-models-pytorch",
        _build_resnet50,
        _whiten_resnet50,
        "model.segmentation_head.0",
    ),
    DenseSpec(
        "builtin-scenes",
        "a few convolutions for the built-in scenes",
        _build_scenes,
        _whiten_scenes,
    ),
)

DENSE_MODELS: dict[str, DenseSpec] = {spec.name: spec for spec in _SPECS}


def get_dense(name: str) -> DenseSpec:
    """Return the entry of a dense model."""
    other = " Pass others as package.module:function, which returns a model with a logit per pixel."
    check_name(name, DENSE_MODELS, "model", advice=other)
    return DENSE_MODELS[name]


def build_dense(
    name: str, n_classes: int, *, pretrained: bool = False, whitening: bool = False
) -> nn.Module:
    """Return a dense model with fresh weights, in training mode, for images in [0, 1].

    Args:
        name: A key of `DENSE_MODELS`, or `package.module:function`.
        n_classes: Number of logits per pixel.
        pretrained: Whether its encoder begins with weights for ImageNet.
        whitening: Whether it has instance whitening in its first stages, as RobustNet; ignored for
            functions.
    """
    if ":" in name:
        if pretrained:
            raise UnsuitableModel(
                "not_applicable",
                f"{name} is a function that chooses its initial weights itself. Load them there, "
                "and remove --pretrained.",
                option="pretrained",
            )
        return build_external(name, None, pretrained=False).train()
    spec = get_dense(name)
    model = spec.build(n_classes, pretrained)
    if whitening:
        spec.whiten(model)
    return model.train()


def is_dense_name(name: str) -> bool:
    """Return whether a name is that of a dense model, with or without instance whitening.

    >>> is_dense_name("deeplabv3plus-resnet50"), is_dense_name("deeplabv3plus-resnet50+isw")
    (True, True)
    """
    return name.removesuffix(WHITENED) in DENSE_MODELS


def load_dense(path: str | Path, expected: str | None = None) -> nn.Module:
    """Return a dense model that was trained here, in evaluation mode, for images in [0, 1].

    Args:
        path: A file written by `acclimate train --task segmentation`.
        expected: Name that the model must have, which ends in `+isw` if it whitens instances; None
            for any.
    """
    path = Path(path)
    tensors, card = read_file(path, "zoo")
    training = card.get("training", {})
    if training.get("task") != TASK:
        raise ArtifactMismatch(
            "other_kind",
            f"Expected a segmentation model in {path}, found "
            f"{card.get('name', 'something else')}. Pass a file written by acclimate train --task "
            "segmentation.",
            path=path,
            found=training.get("task", "classification"),
            expected=TASK,
        )
    whitening = bool(training["whitening"])
    found = f"{card['name']}{WHITENED if whitening else ''}"
    if expected not in (None, found):
        raise ArtifactMismatch(
            "other_weights",
            f"Expected the weights of {expected} in {path}, found those of {found}. Pass the file "
            "of that model, or the name of the model in the file.",
            differences={"name": (found, expected)},
        )
    with torch.random.fork_rng(devices=[]):  # all that is drawn is overwritten
        model = build_dense(str(card["name"]), int(card["n_classes"]), whitening=whitening)
    fit(model, tensors, None, path)
    return model.eval()
