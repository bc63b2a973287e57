"""Instance whitening: features in which every channel of every image has mean 0 and variance 1.

The layers RobustNet puts into the first stages of a network (Choi et al., CVPR 2021,
https://arxiv.org/abs/2103.15597). What is left to be whitened is how channels vary together; the
loss that does it is in `acclimate.training.isw`.
"""

from __future__ import annotations

from torch import Tensor, nn


class InstanceWhitening(nn.Module):
    """Standardises each channel of each image over its pixels, without weights of its own.

    Args:
        n_channels: Of its input.
    """

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.n_channels = n_channels
        self.norm = nn.InstanceNorm2d(n_channels, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)  # type: ignore[no-any-return]


def whitening_layers(model: nn.Module) -> dict[str, InstanceWhitening]:
    """Return the layers of this kind by name, in the order of the model."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, InstanceWhitening)
    }


def whiten_stem(stem: nn.Sequential) -> nn.Sequential:
    """Return a stem that whitens after its convolution.

    The BatchNorm that follows is kept: of standardised features it changes but scale and shift,
    which the published weights were trained with.
    """
    layers: list[nn.Module] = []
    for layer in stem:
        if isinstance(layer, nn.BatchNorm2d):
            layers.append(InstanceWhitening(layer.num_features))
        layers.append(layer)
    return nn.Sequential(*layers)


def whiten_stage(stage: nn.Module, n_channels: int) -> nn.Sequential:
    """Return a stage, a sequence of blocks, that whitens what it gives on."""
    return nn.Sequential(*stage.children(), InstanceWhitening(n_channels))
