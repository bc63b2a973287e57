"""How much each parameter of the normalisation layers matters to the source: a diagonal Fisher."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.errors import UnsuitableModel
from acclimate.functional.norm import norm_parameters, use_statistics
from acclimate.parts.options import FisherOptions
from acclimate.parts.source import Source, iterate_blocks
from acclimate.taps import Anatomy, get_logits


def prepare_fisher(
    model: nn.Module, anatomy: Anatomy, source: Source, options: FisherOptions
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the squared gradients by parameter name, averaged over batches, and the part's card.

    As EATA's authors do: the gradient of the cross entropy with the model's own predictions, by
    batches, with the batch's statistics in BatchNorm. Labels are not used.
    """
    named = norm_parameters(model)
    if not named:
        raise UnsuitableModel(
            "the part fisher is measured on scale and shift of normalisation layers, and this "
            'model has none. Leave "fisher" out of the parts.'
        )
    totals = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    n = n_batches = 0
    try:
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        for parameter in named.values():
            parameter.requires_grad_(True)
        for x, _ in iterate_blocks(source, "fisher", options.n_samples, options.batch_size):
            if len(x) == 1:
                continue  # one image has no batch statistics
            with use_statistics(model, "batch"), torch.enable_grad():
                logits = get_logits(model(x), anatomy.logits_at)
                loss = F.cross_entropy(logits, logits.detach().argmax(dim=1))
                gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            for name, gradient in zip(named, gradients, strict=True):
                if gradient is not None:
                    totals[name] += gradient**2
            n += len(x)
            n_batches += 1
            if source.progress is not None:
                source.progress("fisher", n, options.n_samples)
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
    tensors = {f"fisher/{name}": total / max(1, n_batches) for name, total in totals.items()}
    return tensors, {"n_samples": n, "batch_size": options.batch_size}
