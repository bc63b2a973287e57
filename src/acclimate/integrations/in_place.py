"""Adapt a model where it is, for code that calls the model itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.adaptation import adapt
from acclimate.artifact import Artifact
from acclimate.methods.method import Method


@contextmanager
def in_place(
    model: nn.Module, method: str = "steady", artifact: Artifact | None = None, **options: Any
) -> Iterator[Method]:
    """Make calls of the model itself predict and learn; give it back bit for bit at the end.

    For code that takes a model and calls it, such as a pipeline of transformers or a validation
    loop. It may put the model in eval mode and disable gradients, also by inference mode. The
    model learns all the same; to pause it, use `paused()` of the adapted model.

    Hooks that were registered on the model itself run more than once for a batch.

    Args:
        model: The model that the other code calls.
        method: Name of the method.
        artifact: Artifact of the model.
        **options: All other arguments of `adapt`.

    Yields:
        The adapted model, for `counts`, `report()`, `save()` and so on, inside the context only.

    Example:
        >>> from acclimate.testing.models import tiny_batches, tiny_model
        >>> model = tiny_model("batch_norm").eval()
        >>> with torch.no_grad(), in_place(model, "tent") as adapted:
        ...     for x, _ in tiny_batches(3):
        ...         logits = model(x)
        ...     adapted.counts.updates
        3
    """
    with torch.inference_mode(False):
        adapted = adapt(model, method, artifact, **options)
    own, compiled = model.__dict__.get("forward"), model._compiled_call_impl
    try:
        model._compiled_call_impl = None  # set by model.compile(); it would compile the detour
        model.__dict__["forward"] = _Detour(adapted, model.forward)
        yield adapted
    finally:
        model.__dict__.pop("forward", None)
        if own is not None:
            model.__dict__["forward"] = own
        model._compiled_call_impl = compiled
        with torch.inference_mode(False):
            adapted.unwrap()


class _Detour:
    """The forward of a model that is adapted in place.

    Calls from outside go to the adapted model. Those of the adapted model, whose thread holds its
    lock, go on to the model's own forward.
    """

    def __init__(self, adapted: Method, forward: Callable[..., Any]) -> None:
        self.adapted, self.forward = adapted, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.adapted._lock.is_mine:
            return self.forward(*args, **kwargs)
        with torch.inference_mode(False):
            usable = {name: _as_normal(value) for name, value in kwargs.items()}
            return self.adapted(*map(_as_normal, args), **usable)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.forward, memo)  # a copy of the model is not adapted


def _as_normal(value: Any) -> Any:
    """Return a tensor that a graph can save, if it was made in inference mode."""
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value
