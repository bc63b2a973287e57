"""Per-sample gradients of any parameter, by `torch.func`: general, but a whole pass of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from acclimate.errors import UnsuitableModel
from acclimate.functional.gradient_rules import at_least_float32

#: From logits and labels of a batch to the sum of the samples' losses.
Loss = Callable[[Tensor, Tensor], Tensor]


@contextmanager
def exchanged(
    model: nn.Module, parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]
) -> Iterator[None]:
    """Put `values` wherever the model holds the parameters, until the block ends.

    Not `functional_call`: that wants the module to call, where here a function runs the model, and
    (in torch 2.13) it does not put back parameters of a module that is known by two names.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    places = [
        (layer._parameters, key, parameter)
        for layer in model.modules()
        for key, parameter in layer._parameters.items()
        if id(parameter) in names
    ]
    try:
        for owned, key, parameter in places:
            owned[key] = cast(nn.Parameter, values[names[id(parameter)]])
        yield
    finally:
        for owned, key, parameter in places:
            owned[key] = parameter


def general_gradients(
    forward: Callable[[Tensor], Tensor],
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    x: Tensor,
    y: Tensor,
    loss: Loss,
) -> dict[str, Tensor]:
    """Return the gradients of each sample's loss, (B, *shape) by parameter name.

    Raises:
        UnsuitableModel: `torch.func` cannot differentiate the model sample by sample.
    """

    def loss_of(values: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        with exchanged(model, parameters, values):
            return loss(at_least_float32(forward(sample[None])), label[None])

    values = {name: parameter.detach() for name, parameter in parameters.items()}
    # `grad` works inside no_grad; without it ordinary autograd would record the pass as well.
    # Attention's fused kernels have no batching rule: torch would run them sample by sample.
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))
            gradients: dict[str, Tensor] = each(values, x, y)
            return gradients
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise UnsuitableModel(
            "not_differentiable",
            "per-sample gradients were needed of parameters that belong to no plain layer: "
            f"{listed(list(parameters))}. torch.func could not differentiate the model sample "
            f"by sample: {str(error).strip().splitlines()[0] if str(error) else error!r} "
            "Take data-dependent branches, .item() and in-place changes of fresh tensors out of "
            "the forward, or put these parameters into standard layers (Conv, Linear, norms).",
            parameters=tuple(parameters),
        ) from error


def listed(names: Sequence[str]) -> str:
    """Return the first names of many, for a message.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c (+ 2 more)'
    """
    more = f" (+ {len(names) - 3} more)" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
