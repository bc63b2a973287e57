"""The diagonal Fisher information of the normalisation layers' parameters on source data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from acclimate.errors import BadInput, UnsuitableModel
from acclimate.functional.entropy import log_probs
from acclimate.functional.norm import batch_norm_layers, norm_parameters, use_statistics
from acclimate.introspect import ModelInfo
from acclimate.options import hp
from acclimate.parts.part import Computed, Context, Part, Saved, register_part
from acclimate.parts.source import iterate_blocks
from acclimate.schema import Schema, TensorOf


@register_part
@dataclass(frozen=True, kw_only=True)
class FisherInformation(Part):
    """Squared gradients by parameter, averaged over batches; the defaults are those of EATA.

    As in the authors' code, the gradients are those of the cross entropy with the model's own
    predictions, per batch, with batch statistics in BatchNorm. Labels are not used. The tensors are
    `fisher/<parameter>`.
    """

    name: ClassVar[str] = "fisher"
    always_exact: ClassVar[bool] = True

    n_samples: int = hp(2000, low=1, help="number of source samples")
    batch_size: int = hp(
        64, low=1, help="samples whose gradients are averaged before they are squared"
    )

    @classmethod
    def tensor_schemas(cls, saved: Saved) -> Mapping[str, Schema]:
        return saved.by_parameter(("fisher",), lambda shape, _: TensorOf(shape, low=0))

    def check(self, model: nn.Module, info: ModelInfo) -> None:
        if not norm_parameters(model):
            raise UnsuitableModel(
                "missing_layers",
                "Expected a model with normalisation layers, whose scales and shifts the part "
                'fisher is computed for, found none. Remove "fisher" from parts.',
                layers=("BatchNorm", "InstanceNorm", "GroupNorm", "LayerNorm", "RMSNorm"),
            )

    def compute(self, context: Context) -> Computed:
        model = context.model
        named = norm_parameters(model)
        # At least float32: squares of small gradients underflow in half precision.
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
            for x, _ in iterate_blocks(context.source, "fisher", self.n_samples, self.batch_size):
                if len(x) == 1 and has_batch_norm:
                    continue  # one image has no batch statistics
                with use_statistics(model, "batch"), torch.enable_grad():
                    logits = context.logits(x)
                    loss = F.nll_loss(log_probs(logits), logits.detach().argmax(dim=1))
                    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
                for name, gradient in zip(named, gradients, strict=True):
                    if gradient is not None:
                        totals[name] += gradient.to(totals[name]) ** 2
                n += len(x)
                n_batches += 1
                if context.source.progress is not None:
                    context.source.progress("fisher", n, self.n_samples)
        finally:
            for parameter, flag in flags:
                parameter.requires_grad_(flag)
        if not n_batches:
            raise BadInput(
                "single_sample",
                "Expected source batches of more than one sample to compute the part fisher of a "
                "model with BatchNorm, found single samples only. Use more samples or larger "
                "batches: FisherInformation(n_samples=..., batch_size=...).",
            )
        tensors = {f"fisher/{name}": total / n_batches for name, total in totals.items()}
        return tensors, {"n_samples": n, "batch_size": self.batch_size}
