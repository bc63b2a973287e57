"""Activation checkpointing for any model: blocks recompute their activations in the backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

#: Maximum number of layers of a sequence that is a block: two convolutions with their layers.
SHORT = 8

_CONTAINERS = (nn.Sequential, nn.ModuleList)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model; they are not nested.

    A block contains layers. It is an element of a container, as in a stack of residual blocks, or
    it contains only plain layers. A module that contains blocks is not a block itself, because
    recomputing it, for example the whole encoder, would need all of its activations at once. A long
    sequence of layers is not a block, but a short one is.
    """
    found: list[nn.Module] = []

    def search(module: nn.Module) -> None:
        for child in module.children():
            inside = list(child.children())
            is_stacked = isinstance(module, _CONTAINERS)
            is_flat = not any(True for each in inside for _ in each.children())
            is_short = isinstance(child, nn.Sequential) and is_flat and len(inside) <= SHORT
            is_module = not isinstance(child, _CONTAINERS) and (is_stacked or is_flat)
            if inside and (is_module or is_short):
                found.append(child)
            else:
                search(child)

    search(model)
    return found


@contextmanager
def forget_activations(
    model: nn.Module, again: Callable[[], AbstractContextManager[None]]
) -> Iterator[None]:
    """Make the blocks of a model store only their inputs, and recompute all other activations.

    The gradients are the same bit for bit, at the cost of about one more forward pass.

    Args:
        model: The model; `find_blocks` returns its blocks. They are unchanged afterwards.
        again: Returns the context in which a block is recomputed, because the contexts of the
            forward pass have ended by then.
    """
    if not torch.is_grad_enabled():
        yield
        return
    blocks = find_blocks(model)
    own = [block.__dict__.get("forward") for block in blocks]
    for block in blocks:
        block.forward = partial(
            checkpoint,
            block.forward,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), again()),
        )
    try:
        yield
    finally:
        for block, forward in zip(blocks, own, strict=True):
            del block.forward
            if forward is not None:
                block.forward = forward
