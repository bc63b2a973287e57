"""Tiny classifiers of the built-in images, for jobs that take milliseconds."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn

N_CLASSES = 10


def tiny() -> nn.Module:
    """Return a classifier of the built-in images that looks trained."""
    return _fill(_layers())


class Doomed(nn.Sequential):
    """Kills its process at the first batch that is more than a try, as soon as a file is there."""

    def forward(self, x: Tensor) -> Tensor:
        """Die."""
        if len(x) > 2:
            _wait_for_file("ACCLIMATE_TEST_DOOM")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def doomed() -> nn.Module:
    """Return the same classifier in a body that is always killed."""
    return _fill(Doomed(*_layers()))


class Slow(nn.Sequential):
    """Takes its time, where it is told how much."""

    def forward(self, x: Tensor) -> Tensor:
        """Sleep a little, unless this is a try."""
        if len(x) > 2:
            time.sleep(float(os.environ.get("ACCLIMATE_TEST_PAUSE", "0")))
        return super().forward(x)


def slow() -> nn.Module:
    """Return the same classifier, slow enough to be interrupted."""
    return _fill(Slow(*_layers()))


class Gated(Slow):
    """Takes its time, and stops after some batches until a file is there."""

    n_batches = 0

    def forward(self, x: Tensor) -> Tensor:
        """Wait at the gate, unless this is a try."""
        self.n_batches += len(x) > 2
        if self.n_batches > int(os.environ.get("ACCLIMATE_TEST_GATE_AFTER", "0")):
            _wait_for_file("ACCLIMATE_TEST_GATE")
        return super().forward(x)


def gated() -> nn.Module:
    """Return the same classifier, which is at work until it is let go on."""
    return _fill(Gated(*_layers()))


def _wait_for_file(variable: str) -> None:
    """Wait for the file that the environment names, if it names one; but not for ever."""
    name = os.environ.get(variable)
    deadline = time.monotonic() + 120
    while name and not Path(name).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def _layers() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, N_CLASSES),
    )


def _fill(model: nn.Sequential) -> nn.Module:
    draws = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(0.4 * torch.randn(tensor.shape, generator=draws))
        model[1].running_var.fill_(0.2)  # type: ignore[union-attr, operator]
    return model.eval()
