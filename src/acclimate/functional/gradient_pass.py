"""One forward and one backward over a chunk, with the layer rules run on the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.errors import UnsuitableModel
from acclimate.functional.gradient_hooks import LayerHooks, RuledLayer
from acclimate.functional.gradient_rows import copy_rows
from acclimate.functional.gradient_rules import at_least_float32, iter_products
from acclimate.functional.gradient_sums import CosineSums
from acclimate.functional.gradient_survey import Survey
from acclimate.functional.gradient_vmap import Loss, exchanged

__all__ = ["Loss", "RuledPass", "summed_cross_entropy"]


def summed_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the sum of the samples' cross entropies."""
    return F.cross_entropy(logits, y, reduction="sum")


class RuledPass:
    """Adds the cosines of all parameters that the layer rules can do; used once.

    A layer's rule runs as soon as the gradient of its output arrives, and what was kept for it is
    released at once. No parameter may require gradients, so that autograd works out the gradients
    of outputs and nothing else.

    With `keeps_half`, products of values that arrive in half precision are taken in it, where the
    layer is a linear map; otherwise all values are widened to float32 first.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        found: Survey,
        sums: CosineSums,
        n_rows: int,
        keeps_half: bool = False,
    ) -> None:
        self._model = model
        self._copied = {name: parameters[name] for name in found.copied}
        self._hooks = LayerHooks(found.layers, n_rows, self._keep)
        self._found = found
        self._keeps_half = keeps_half
        self._sums = sums
        self._roots: list[Tensor] = []
        self._kept: dict[int, tuple[Tensor, int]] = {}
        self._shared: dict[str, Tensor] = {}
        self._ruled: frozenset[str] = frozenset()

    def run(
        self, forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, loss: Loss
    ) -> frozenset[str]:
        """Run one chunk, rows in pairs; return the names of the parameters that were done.

        The loss must be a sum over rows, so that every row has the gradient it would have alone.
        """
        if not (self._found.ruled or self._found.copied):
            return frozenset()
        copies = {
            name: copy_rows(self._copied[name], shape, len(x))
            for name, shape in self._found.copied.items()
        }
        with self._hooks, exchanged(self._model, self._copied, copies):
            logits = forward(x)
        calls, uses = self._hooks.calls, self._found.uses
        # A layer that was called otherwise than in the trial is left to the general way.
        self._ruled = frozenset(name for name in self._found.ruled if calls[name] == uses[name])
        starts = [*self._roots, *copies.values()]
        found: tuple[Tensor | None, ...] = ()
        if starts:
            total = loss(at_least_float32(logits), y)
            found = torch.autograd.grad(total, starts, allow_unused=True)
        for name, gradients in self._shared.items():
            self._sums.add_gradients(name, gradients)
        for name, of_copies in zip(copies, found[len(self._roots) :], strict=True):
            if of_copies is not None:
                shape = (len(x), *self._copied[name].shape)
                self._sums.add_gradients(name, of_copies.reshape(shape))
        return self._ruled | copies.keys()

    def _keep(self, layer: RuledLayer, x: Tensor, output: Tensor) -> Tensor:
        """Keep a layer's input until its output gradient arrives; runs in the forward."""
        if self._found.ruled.isdisjoint(layer.names.values()):
            return output
        if not output.requires_grad:
            # The graph starts here. It goes on with a copy, because a leaf must not be changed in
            # place and the next layer may be an in-place ReLU.
            root = output.detach().requires_grad_()
            self._roots.append(root)
            output = root.clone()
        call = len(self._kept)
        self._kept[call] = (x.detach(), x._version)
        # A tensor's hook gets the gradient of the value as it is now, also if the next layer
        # overwrites it in place; a module's backward hook does not work with such layers.
        arrived = partial(self._arrived, layer, call)
        output.register_hook(arrived)  # type: ignore[no-untyped-call]
        return output

    def _arrived(self, layer: RuledLayer, call: int, delta: Tensor) -> None:
        """Run the rule of one call of a layer; runs in the backward."""
        x, version = self._kept.pop(call)
        if x._version != version:
            names = layer.names.values()
            raise UnsuitableModel(
                "changed_in_place",
                f"the input of a {type(layer.module).__name__} layer "
                f"({', '.join(names)}) must stay as it was "
                "until the backward pass, but something later in the forward changed it in place. "
                "Use the out-of-place operation there (for example ReLU(inplace=False)).",
                layers=tuple(dict.fromkeys(name.rpartition(".")[0] for name in names)),
            )
        if not self._keeps_half:
            x, delta = at_least_float32(x), at_least_float32(delta)
        module, rule = layer.module, layer.rule
        for attribute, name in layer.names.items():
            if name not in self._ruled:
                continue
            if self._found.uses[name] == 1:
                blocks = iter_products(rule, module, attribute, x, delta, self._sums.granularity)
                for products in blocks:
                    self._sums.add_products(name, products)
                continue
            # Gradients of several uses add up before any product is taken.
            rule_of = rule.weight if attribute == "weight" else rule.bias
            gradients = rule_of(module, at_least_float32(x), at_least_float32(delta))
            if name in self._shared:
                self._shared[name] += gradients
            else:
                self._shared[name] = gradients
