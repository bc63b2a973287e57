"""Model factories for the tests of the command line."""

from __future__ import annotations

import os
import signal

import torch
from torch import Tensor, nn

CLASSES = ("cat", "dog", "eel", "fox")


def tiny_cnn() -> nn.Module:
    """Return a classifier for 8×8 images and four classes that looks trained."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, len(CLASSES)),
    )
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator))
        model[1].running_var.fill_(0.2)
    return model.eval()


class Mortal(nn.Sequential):
    """Kills its process at the forward whose number is in KILL_AT."""

    n_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n_calls += 1
        if self.n_calls == int(os.environ.get("KILL_AT", "0")):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def mortal_cnn() -> nn.Module:
    """Return the same classifier in a body that can be killed."""
    return Mortal(*tiny_cnn())


def plain_mlp() -> nn.Module:
    """Return a classifier without any normalisation layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 4))


def needs_argument(width: int) -> nn.Module:
    """Fail when called without arguments."""
    return nn.Linear(width, 2)


def fails() -> nn.Module:
    """Fail in the function itself."""
    raise RuntimeError("the licence has expired")


def not_a_model() -> str:
    """Return something else."""
    return "model"


NUMBER = 7


def low_precision_cnn() -> nn.Module:
    """Return the tiny network with 16-bit weights."""
    return tiny_cnn().bfloat16()


class TwoOutputs(nn.Module):
    """Returns features and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tiny_cnn()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.flatten(1), self.net(x)


def two_outputs() -> nn.Module:
    """Return a network whose second output are the logits."""
    return TwoOutputs()
