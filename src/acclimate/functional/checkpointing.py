"""Activation checkpointing for any model: blocks forget what is inside them until the backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

#: Layers in a sequence that is a block: two convolutions with what belongs to them.
SHORT = 8

_CONTAINERS = (nn.Sequential, nn.ModuleList)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks a model is built from, none of them inside another.

    A block has layers inside. It stands in a container, as in a stack of residual blocks; or it
    has nothing but plain layers in it. What has blocks of its own is no block: the whole encoder,
    say, would have to be held in memory when it is computed again. Nor is a long sequence of
    layers, but a short one is.
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
    """Run the model so that its blocks keep their inputs only; the rest is computed again.

    The gradients are the same to the last bit, for about one more forward.

    Args:
        model: Its blocks are what `find_blocks` returns; nothing is left behind on them.
        again: Makes the context in which a block runs again, in the backward: whatever surrounds
            the forward has ended by then.
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
