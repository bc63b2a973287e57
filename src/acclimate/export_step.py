"""Export the adaptation step itself: forward, loss and gradients as one graph.

The graph takes a batch and the scale and shift parameters of the normalisation layers, and returns
the logits, the loss and the gradient of each of these parameters. It has no autograd in it, so
that a runtime without autograd can learn: the optimiser step is left to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from acclimate.export import refuse_export
from acclimate.forward import get_logits
from acclimate.functional.norm import use_statistics
from acclimate.methods.method import Method
from acclimate.methods.tent import Tent


@dataclass(frozen=True)
class ExportedStep:
    """The graph of an adaptation step.

    Attributes:
        program: Takes `(x, *parameters)` and returns `(logits, loss, *gradients)`. The batch size
            is fixed. `torch.export.save` writes it.
        names: Names of the parameters, in this order.
        parameters: Their values now, as copies.
    """

    program: torch.export.ExportedProgram
    names: tuple[str, ...]
    parameters: tuple[Tensor, ...]


def export_step(adapted: Method, x: Tensor) -> ExportedStep:
    """Return the adaptation step of `tent` as one graph.

    Args:
        adapted: A model adapted by `tent`, with the statistics `batch` or `source` and without
            terms. It is not changed.
        x: A batch of the size that the graph will take.

    Raises:
        NotAdapted: The step of this method or with these options is not such a graph.
    """
    if type(adapted) is not Tent:
        raise refuse_export(adapted.name, "its step is more than the entropy and its gradients.")
    if adapted.statistics not in ("batch", "source"):
        raise refuse_export(adapted.name, "its step also changes statistics.")
    if adapted.terms:
        raise refuse_export(adapted.name, "its step has terms that are added to the loss.")
    tent, model, statistics = adapted, adapted.model, adapted.statistics

    def step(x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        own = [value.detach().requires_grad_() for value in values]
        chosen: Any = statistics
        with torch.enable_grad(), use_statistics(model, chosen, moves=False):
            named = dict(zip(names, own, strict=True))
            output = torch.func.functional_call(model, named, (x,))
            logits = get_logits(output, tent.logits_at)
            loss = tent.config.entropy_of(logits).mean()
            gradients: Sequence[Tensor] = torch.autograd.grad(loss, own)
        return (logits.detach(), loss.detach(), *gradients)

    with adapted.settled():
        names = tuple(tent.parameters_moved)
        values = tuple(p.detach().clone() for p in tent.parameters_moved.values())
        with torch.no_grad():
            graph = make_fx(step)(x, *values)
            program = torch.export.export(graph, (x, *values))
    return ExportedStep(program, names, values)
