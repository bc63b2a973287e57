"""Which parameters the layer rules can do: hooks on the layers, and a trial forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node, saved_tensors_hooks

from acclimate.errors import UnsuitableModel
from acclimate.functional.gradient_rules import Rule, find_rule


@dataclass(frozen=True)
class Survey:
    """What a trial forward told about a model.

    Attributes:
        uses: How often the logits depend on each parameter; parameters without use are absent.
        ruled: Parameters of which every use is a call of a layer that has a rule.
        bytes_per_row: What autograd keeps of one row between forward and backward.
    """

    uses: Mapping[str, int]
    ruled: frozenset[str]
    bytes_per_row: int

    @property
    def shared(self) -> frozenset[str]:
        """Parameters with a rule that are used more than once."""
        return frozenset(name for name in self.ruled if self.uses[name] > 1)


class LayerHooks:
    """Counts the calls of layers with a rule while it is open; hands them to `on_call`.

    The hooks stand in front of any others of the model, so they see what the layer itself
    returned, and are gone when the block ends, however it ends.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        n_rows: int,
        on_call: Callable[[nn.Module, Rule, Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self.calls: Counter[str] = Counter()
        self._model = model
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._n_rows = n_rows
        self._on_call = on_call
        self._handles: list[Any] = []

    def __enter__(self) -> LayerHooks:
        for layer in self._model.modules():
            rule = find_rule(layer)
            if rule is not None and self.parameters_of(layer):
                hook = partial(self._called, rule)
                self._handles.append(
                    layer.register_forward_hook(hook, prepend=True, with_kwargs=True)
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def parameters_of(self, layer: nn.Module) -> dict[str, str]:
        """Return the weight and bias a layer owns itself: attribute to name in the model."""
        owned = {key: layer._parameters.get(key) for key in ("weight", "bias")}
        return {
            key: self._names[id(parameter)]
            for key, parameter in owned.items()
            if id(parameter) in self._names
        }

    def _called(
        self, rule: Rule, layer: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any
    ) -> Tensor | None:
        x = args[0] if args else kwargs.get("input")
        if not (isinstance(x, Tensor) and isinstance(output, Tensor) and rule.is_batched(layer, x)):
            return None
        if not len(x) == len(output) == self._n_rows:
            return None
        self.calls.update(self.parameters_of(layer).values())
        return None if self._on_call is None else self._on_call(layer, rule, x, output)


def survey(
    forward: Callable[[Tensor], Tensor],
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    x: Tensor,
) -> Survey:
    """Return how the logits of `x` depend on the parameters, which must all require gradients.

    `x` must have an odd number of rows. Later passes have an even number, so a layer whose first
    dimension is something else than the samples cannot have the right length in both.
    """
    sizes: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = LayerHooks(model, parameters, len(x))
    with hooks, saved_tensors_hooks(note, lambda tensor: tensor):
        logits = forward(x)
    if not (isinstance(logits, Tensor) and logits.dim() == 2 and len(logits) == len(x)):
        what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits)
        raise UnsuitableModel(
            f"expected logits (B, K) for a batch of {len(x)} samples, found {what}. "
            "Give a `forward` that returns the logits alone, one row a sample."
        )
    used = _count_uses(logits.grad_fn)
    uses = {name: used[id(p)] for name, p in parameters.items() if id(p) in used}
    ruled = frozenset(name for name, count in uses.items() if hooks.calls[name] == count)
    return Survey(uses, ruled, sum(sizes.values()) // len(x))


def _count_uses(root: Node | None) -> Counter[int]:
    """Return the number of edges of the autograd graph that end in each leaf, by the leaf's id."""
    uses: Counter[int] = Counter()
    waiting = [root] if root is not None else []
    visited = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None:
                continue
            if hasattr(node, "variable"):
                uses[id(node.variable)] += 1
            elif node not in visited:
                visited.add(node)
                waiting.append(node)
    return uses
