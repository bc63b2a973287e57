"""A teacher: a copy of the model that follows its weights slowly."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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


@contextmanager
def copy_saved_buffers(model: nn.Module) -> Iterator[None]:
    """Let autograd save copies of the model's buffers inside.

    A later pass may then change the buffers before the backward pass of this one.
    """
    own = {buffer.data_ptr() for buffer in model.buffers()}

    def pack(tensor: Tensor) -> Tensor:
        return tensor.clone() if tensor.data_ptr() in own else tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield
