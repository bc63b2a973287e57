"""The optimiser a configuration names, and what its steps must not produce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from acclimate.methods.config import GradientConfig


def build_optimizer(
    parameters: Sequence[nn.Parameter], config: GradientConfig
) -> torch.optim.Optimizer:
    """Build the optimiser a configuration names."""
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=config.lr,
            momentum=config.sgd_momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
        )
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(
        parameters,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Say whether no tensor holds an infinity or a NaN."""
    filled = [tensor.detach() for tensor in tensors if tensor.numel()]
    if not filled:
        return True
    # The largest magnitude: exact, carries NaN and infinity, and cannot overflow as a sum does.
    largest = torch._foreach_norm(filled, float("inf"))
    return bool(torch.stack([value.isfinite().to(filled[0].device) for value in largest]).all())
