"""A few convolutions for the built-in scenes, and their weights."""

from __future__ import annotations

from importlib.resources import files

from safetensors.torch import load_file
from torch import Tensor, nn

from acclimate.builtin.model import open_weights
from acclimate.builtin.scenes import SCENE_CLASSES


def _layer(n_in: int, n_out: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(n_in, n_out, 3, stride, dilation, dilation, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(n_out), nn.ReLU())


class SceneNet(nn.Module):
    """Four convolutions and a head, for images in [0, 1]; logits are at half their size."""

    def __init__(self, n_classes: int = len(SCENE_CLASSES)) -> None:
        super().__init__()
        self.stem = _layer(3, 16)
        self.body = nn.Sequential(_layer(16, 24, 2), _layer(24, 24, 1, 2), _layer(24, 24, 1, 4))
        self.head = nn.Conv2d(24, n_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (n, n_classes, height / 2, width / 2)."""
        return self.head(self.body(self.stem(2 * x - 1)))  # type: ignore[no-any-return]


def load_scene_model() -> SceneNet:
    """Return the source model of the built-in scenes, in evaluation mode."""
    model = SceneNet()
    with open_weights(files("acclimate.builtin") / "scenes.safetensors") as path:
        model.load_state_dict(load_file(path), strict=True)
    return model.eval()
