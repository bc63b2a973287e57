"""One forward and one backward over a chunk, with the layer rules run on the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.errors import UnsuitableModel
from acclimate.functional.gradient_rules import Rule, iter_products
from acclimate.functional.gradient_sums import CosineSums
from acclimate.functional.gradient_survey import LayerHooks, Survey


class RuledPass:
    """Adds the cosines of all parameters that the layer rules can do; used once.

    A layer's rule runs as soon as the gradient of its output arrives, and what was kept for it is
    released at once. No parameter may require gradients, so that autograd works out the gradients
    of outputs and nothing else.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        found: Survey,
        sums: CosineSums,
        n_rows: int,
    ) -> None:
        self._hooks = LayerHooks(model, parameters, n_rows, self._keep)
        self._found = found
        self._sums = sums
        self._n_pairs = n_rows // 2
        self._roots: list[Tensor] = []
        self._kept: dict[int, tuple[Tensor, int]] = {}
        self._shared: dict[str, Tensor] = {}
        self._ruled: frozenset[str] = frozenset()

    def run(self, forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> frozenset[str]:
        """Run one chunk, rows in pairs; return the names of the parameters that were done."""
        if not self._found.ruled:
            return self._found.ruled
        with self._hooks:
            logits = forward(x)
        calls, uses = self._hooks.calls, self._found.uses
        # A layer that was called otherwise than in the trial is left to the general way.
        self._ruled = frozenset(name for name in self._found.ruled if calls[name] == uses[name])
        if self._roots:
            # The sum, so that every row has the gradient it would have alone.
            loss = F.cross_entropy(logits, y, reduction="sum")
            torch.autograd.grad(loss, self._roots, allow_unused=True)
        for name, gradients in self._shared.items():
            self._sums.add_gradients(name, gradients, slice(0, self._n_pairs), self._n_pairs)
        return self._ruled

    def _keep(self, layer: nn.Module, rule: Rule, x: Tensor, output: Tensor) -> Tensor:
        """Keep a layer's input until its output gradient arrives; runs in the forward."""
        if self._found.ruled.isdisjoint(self._hooks.parameters_of(layer).values()):
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
        arrived = partial(self._arrived, layer, rule, call)
        output.register_hook(arrived)  # type: ignore[no-untyped-call]
        return output

    def _arrived(self, layer: nn.Module, rule: Rule, call: int, delta: Tensor) -> None:
        """Run the rule of one call of a layer; runs in the backward."""
        x, version = self._kept.pop(call)
        if x._version != version:
            raise UnsuitableModel(
                f"the input of a {type(layer).__name__} layer "
                f"({', '.join(self._hooks.parameters_of(layer).values())}) must stay as it was "
                "until the backward pass, but something later in the forward changed it in place. "
                "Use the out-of-place operation there (for example ReLU(inplace=False))."
            )
        x, delta = _at_least_float32(x), _at_least_float32(delta)
        for attribute, name in self._hooks.parameters_of(layer).items():
            if name not in self._ruled:
                continue
            if self._found.uses[name] == 1:
                blocks = iter_products(rule, layer, attribute, x, delta, self._sums.granularity)
                for pairs, products in blocks:
                    self._sums.add_products(name, products, pairs, self._n_pairs)
                continue
            # Gradients of several uses add up before any product is taken.
            gradients = (rule.weight if attribute == "weight" else rule.bias)(layer, x, delta)
            if name in self._shared:
                self._shared[name] += gradients
            else:
                self._shared[name] = gradients


def _at_least_float32(values: Tensor) -> Tensor:
    half = values.is_floating_point() and values.element_size() < 4
    return values.float() if half else values
