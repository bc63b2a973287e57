"""A teacher: a copy of the model that follows its weights slowly."""

from __future__ import annotations

import copy

import torch
from torch import nn


def copy_frozen(model: nn.Module) -> nn.Module:
    """Return an independent copy without trainable parameters."""
    return copy.deepcopy(model).requires_grad_(False)


@torch.no_grad()
def follow(teacher: nn.Module, model: nn.Module, decay: float) -> None:
    """Update the teacher's parameters: decay · teacher's + (1 − decay) · model's."""
    for own, other in zip(teacher.parameters(), model.parameters(), strict=True):
        own.lerp_(other.detach(), 1 - decay)


@torch.no_grad()
def share_buffers(teacher: nn.Module, model: nn.Module) -> None:
    """Copy the model's buffers, its running statistics, to the teacher."""
    for own, other in zip(teacher.buffers(), model.buffers(), strict=True):
        own.copy_(other)
