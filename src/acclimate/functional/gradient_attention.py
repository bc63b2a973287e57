"""Self-attention in layers: what `nn.MultiheadAttention` does, with its projections as layers.

torch's module runs its projections as functions, where no rule for layers can see them. While
`visible` is open, self-attention runs as the same sequence of operations, but through linear layers
that own the same parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeGuard

import torch.nn.functional as F
from torch import Tensor, nn

#: Layers that own the packed projection of attention, which no layer of the model does.
Projections = Mapping[nn.MultiheadAttention, nn.Linear]


def find_projections(model: nn.Module) -> Projections:
    """Return a linear layer for every module of attention that can run through one."""
    found = {}
    for layer in model.modules():
        if _is_plain(layer):
            projection = nn.Linear(1, 1, layer.in_proj_bias is not None, device="meta")
            projection._parameters |= {"weight": layer.in_proj_weight, "bias": layer.in_proj_bias}
            found[layer] = projection
    return found


@contextmanager
def visible(projections: Projections) -> Iterator[None]:
    """Let self-attention run through layers until the block ends."""
    try:
        for layer, projection in projections.items():
            layer.forward = partial(_attend, layer, projection)  # type: ignore[method-assign]
        yield
    finally:
        for layer in projections:
            vars(layer).pop("forward", None)


def _is_plain(layer: nn.Module) -> TypeGuard[nn.MultiheadAttention]:
    return bool(
        isinstance(layer, nn.MultiheadAttention)
        and type(layer).forward is nn.MultiheadAttention.forward
        and "forward" not in vars(layer)
        and layer._qkv_same_embed_dim
        and layer.bias_k is None
        and not layer.add_zero_attn
        and not (layer.training and layer.dropout)
    )


def _attend(
    layer: nn.MultiheadAttention,
    projection: nn.Linear,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    is_masked = key_padding_mask is not None or attn_mask is not None or is_causal
    if not query is key is value or is_masked or query.dim() != 3:
        return nn.MultiheadAttention.forward(
            layer,
            query,
            key,
            value,
            key_padding_mask,
            need_weights,
            attn_mask,
            average_attn_weights,
            is_causal,
        )
    x = query if layer.batch_first else query.transpose(0, 1)
    n_rows, length, width = x.shape
    packed = projection(x).view(n_rows, length, 3, layer.num_heads, -1)
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    weights = None
    if need_weights:
        every = (q @ k.transpose(2, 3) / math.sqrt(width // layer.num_heads)).softmax(dim=3)
        mixed, weights = every @ v, every.mean(dim=1) if average_attn_weights else every
    else:
        mixed = F.scaled_dot_product_attention(q, k, v)
    y = layer.out_proj(mixed.transpose(1, 2).flatten(2))
    return y if layer.batch_first else y.transpose(0, 1), weights
