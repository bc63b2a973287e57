"""Hooks on the layers that a rule is known for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from acclimate.functional.gradient_attention import Projections, find_projections, visible
from acclimate.functional.gradient_rules import Rule, find_rule


@dataclass(frozen=True)
class RuledLayer:
    """A layer that has a rule.

    Attributes:
        module: The layer.
        rule: What is known about its kind.
        names: Of the weight and bias it owns itself: attribute to name in the model.
    """

    module: nn.Module
    rule: Rule
    names: Mapping[str, str]


@dataclass(frozen=True)
class Layers:
    """The layers of a model that have a rule, those inside attention included."""

    ruled: tuple[RuledLayer, ...]
    projections: Projections


def find_layers(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> Layers:
    """Return the layers that have a rule and own some of the parameters."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    projections = find_projections(model)
    ruled = []
    for module in (*model.modules(), *projections.values()):
        rule = find_rule(module)
        owned = {key: module._parameters.get(key) for key in ("weight", "bias")}
        known = {key: names[id(p)] for key, p in owned.items() if id(p) in names}
        if rule is not None and known:
            ruled.append(RuledLayer(module, rule, known))
    return Layers(tuple(ruled), projections)


class LayerHooks:
    """Counts the calls of layers with a rule while it is open; hands them to `on_call`.

    The hooks stand in front of any others of the model, so they see what the layer itself
    returned, and are gone when the block ends, however it ends.
    """

    def __init__(
        self,
        layers: Layers,
        n_rows: int,
        on_call: Callable[[RuledLayer, Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self.calls: Counter[str] = Counter()
        self._layers = layers
        self._n_rows = n_rows
        self._on_call = on_call
        self._open = ExitStack()

    def __enter__(self) -> LayerHooks:
        with ExitStack() as opening:
            opening.enter_context(visible(self._layers.projections))
            for layer in self._layers.ruled:
                handle = layer.module.register_forward_hook(
                    partial(self._called, layer), prepend=True, with_kwargs=True
                )
                opening.callback(handle.remove)
            self._open = opening.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    def _called(
        self, layer: RuledLayer, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any
    ) -> Tensor | None:
        x = args[0] if args else kwargs.get("input")
        if not (isinstance(x, Tensor) and isinstance(output, Tensor)):
            return None
        if not (layer.rule.is_batched(module, x) and output.dim()):
            return None
        if not x.shape[0] == output.shape[0] == self._n_rows:
            return None
        self.calls.update(layer.names.values())
        return None if self._on_call is None else self._on_call(layer, x, output)
