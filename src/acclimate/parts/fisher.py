"""How much each parameter of the normalisation layers matters to the source: a diagonal Fisher."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acclimate.errors import BadInput, UnsuitableModel
from acclimate.functional.entropy import log_probs
from acclimate.functional.norm import batch_norm_layers, norm_parameters, use_statistics
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
            "missing_layers",
            "the part fisher is measured on scale and shift of normalisation layers, and this "
            'model has none. Leave "fisher" out of the parts.',
            layers=("BatchNorm", "InstanceNorm", "GroupNorm", "LayerNorm", "RMSNorm"),
        )
    # In float32 at least: squares of small gradients vanish in half precision.
    totals = {
        name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
        for name, p in named.items()
    }
    has_batch_norm = bool(batch_norm_layers(model))
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    n = n_batches = 0
    try:
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        for parameter in named.values():
            parameter.requires_grad_(True)
        for x, _ in iterate_blocks(source, "fisher", options.n_samples, options.batch_size):
            if len(x) == 1 and has_batch_norm:
                continue  # one image has no batch statistics
            with use_statistics(model, "batch"), torch.enable_grad():
                logits = get_logits(model(x), anatomy.logits_at)
                loss = F.nll_loss(log_probs(logits), logits.detach().argmax(dim=1))
                gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            for name, gradient in zip(named, gradients, strict=True):
                if gradient is not None:
                    totals[name] += gradient.to(totals[name]) ** 2
            n += len(x)
            n_batches += 1
            if source.progress is not None:
                source.progress("fisher", n, options.n_samples)
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
    if not n_batches:
        raise BadInput(
            "single_sample",
            "expected source batches of more than one sample to measure the part fisher of a model "
            "with BatchNorm, found single ones only. Give more samples, or larger batches: "
            "FisherOptions(n_samples=..., batch_size=...).",
        )
    tensors = {f"fisher/{name}": total / n_batches for name, total in totals.items()}
    return tensors, {"n_samples": n, "batch_size": options.batch_size}
