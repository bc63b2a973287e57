"""The projector: a small perceptron between features and the space of the prototypes."""

from __future__ import annotations

import torch
from torch import nn


def build_projector(depth: int, n_in: int, hidden: int, n_out: int, seed: int = 0) -> nn.Module:
    """Build a projector of `depth` linear layers; none is the identity.

    Linear – BatchNorm – ReLU – … – Linear, as the paper draws it. The initial weights depend on
    the seed only; the global random state is left as it is.

    >>> [type(layer).__name__ for layer in build_projector(2, 8, 16, 4)]
    ['Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    """
    if depth == 0:
        return nn.Identity()
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(depth - 1):
            layers += [nn.Linear(n_in, hidden), nn.BatchNorm1d(hidden), nn.ReLU()]
            n_in = hidden
        layers.append(nn.Linear(n_in, n_out))
    return nn.Sequential(*layers)
