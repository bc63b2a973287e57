"""Which parameters the layer rules can do: a trial forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.autograd.graph import Node, saved_tensors_hooks

from acclimate.errors import UnsuitableModel
from acclimate.functional.gradient_hooks import LayerHooks, Layers, find_layers
from acclimate.functional.gradient_rows import find_row_shapes


@dataclass(frozen=True)
class Survey:
    """What a trial forward told about a model.

    Attributes:
        layers: Those that have a rule.
        uses: How often the logits depend on each parameter; parameters without use are absent.
        ruled: Parameters of which every use is a call of a layer that has a rule.
        copied: Parameters outside of layers that can be copied for every row, and the shape of a
            copy.
        bytes_per_row: What autograd keeps of one row between forward and backward.
    """

    layers: Layers
    uses: Mapping[str, int]
    ruled: frozenset[str]
    copied: Mapping[str, tuple[int, ...]]
    bytes_per_row: int

    @property
    def materialized(self) -> frozenset[str]:
        """Parameters whose gradients a pass holds for all rows: copied, or used more than once."""
        return frozenset(self.copied) | {name for name in self.ruled if self.uses[name] > 1}


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

    layers = find_layers(model, parameters)
    hooks = LayerHooks(layers, len(x))
    with hooks, saved_tensors_hooks(note, lambda tensor: tensor):
        logits = forward(x)
    if not isinstance(logits, Tensor):
        raise UnsuitableModel("no_logits", _refusal(len(x), str(type(logits))))
    if not (logits.dim() in (2, 4) and len(logits) == len(x)):
        shape = tuple(logits.shape)
        raise UnsuitableModel("wrong_logits", _refusal(len(x), f"shape {shape}"), found=shape)
    used = _count_uses(logits.grad_fn)
    uses = {name: used[id(p)] for name, p in parameters.items() if id(p) in used}
    ruled = frozenset(name for name, count in uses.items() if hooks.calls[name] == count)
    outside = {name: parameters[name] for name in uses if not hooks.calls[name]}
    copied = find_row_shapes(forward, model, outside, x, logits) if outside else {}
    return Survey(layers, uses, ruled, copied, sum(sizes.values()) // len(x))


def _refusal(n: int, found: str) -> str:
    return (
        f"expected logits (B, K) for a batch of {n} samples, or (B, K, h, w), found "
        f"{found}. Give a `forward` that returns the logits alone, one row a sample."
    )


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
