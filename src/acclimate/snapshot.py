"""Copies of everything a method may change, as plain trees of tensors.

A *tree* is a tensor, a number, a string, None, or a list or a string-keyed dict of trees. All state
in the package is stored, copied, saved and compared in this form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from acclimate.errors import UnsuitableModel
from acclimate.storage import digest

Tree = Any

_LEAF = "$tensor"  # marks the position of a tensor in a tree's JSON form


def map_tree(tree: Tree, function: Callable[[Tensor], Tensor]) -> Tree:
    """Return the tree with a function applied to every tensor; containers are new."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: map_tree(value, function) for key, value in tree.items()}
    if isinstance(tree, list):
        return [map_tree(value, function) for value in tree]
    return tree


def copy_tree(tree: Tree) -> Tree:
    """Return an independent copy."""
    return map_tree(tree, lambda tensor: tensor.detach().clone())


def flatten_tree(tree: Tree, prefix: str = "") -> tuple[dict[str, Tensor], Any]:
    """Split a tree into named tensors and a JSON skeleton with their positions.

    >>> flatten_tree({"a": [torch.tensor(1), None], "b": 2})
    ({'a.0': tensor(1)}, {'a': [{'$tensor': 'a.0'}, None], 'b': 2})
    """
    if isinstance(tree, Tensor):
        return {prefix: tree}, {_LEAF: prefix}
    if not isinstance(tree, dict | list):
        return {}, tree
    tensors: dict[str, Tensor] = {}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    parts = []
    for key, value in items:
        found, part = flatten_tree(value, f"{prefix}.{key}" if prefix else str(key))
        tensors |= found
        parts.append((key, part))
    return tensors, dict(parts) if isinstance(tree, dict) else [part for _, part in parts]


def unflatten_tree(tensors: dict[str, Tensor], skeleton: Any) -> Tree:
    """Undo `flatten_tree`."""
    if isinstance(skeleton, dict):
        if set(skeleton) == {_LEAF}:
            return tensors[skeleton[_LEAF]]
        return {key: unflatten_tree(tensors, value) for key, value in skeleton.items()}
    if isinstance(skeleton, list):
        return [unflatten_tree(tensors, value) for value in skeleton]
    return skeleton


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by name; a shared tensor appears once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@torch.no_grad()
def load_tensors(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy values into the model's own parameters and buffers of that name, bit for bit."""
    own = model_tensors(model)
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """Return what identifies a model: names and shapes of its tensors, a hash of its weights."""
    tensors = model_tensors(model)
    if any(is_lazy(tensor) for tensor in tensors.values()):
        raise UnsuitableModel(
            "lazy_layers",
            "Expected an initialised model, found lazy layers that have not seen an input yet. Run "
            "the model once first.",
        )
    layout = {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in tensors.items()}
    return {
        "layout": layout,
        "weights_sha256": digest(tensors),
    }
