"""A copy of the model that teaches it: it follows the model's weights slowly."""

from __future__ import annotations

import copy

import torch
from torch import nn


def copy_frozen(model: nn.Module) -> nn.Module:
    """Return an independent copy of which nothing is trained."""
    return copy.deepcopy(model).requires_grad_(False)


@torch.no_grad()
def follow(teacher: nn.Module, model: nn.Module, decay: float) -> None:
    """Move the teacher's parameters towards the model's: decay · own + (1 − decay) · model's."""
    for own, other in zip(teacher.parameters(), model.parameters(), strict=True):
        own.lerp_(other.detach(), 1 - decay)


@torch.no_grad()
def share_buffers(teacher: nn.Module, model: nn.Module) -> None:
    """Give the teacher the model's buffers: its running statistics."""
    for own, other in zip(teacher.buffers(), model.buffers(), strict=True):
        own.copy_(other)
