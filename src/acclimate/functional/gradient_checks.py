"""What per-sample gradients refuse to be taken of."""

from __future__ import annotations

from typing import get_args

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from acclimate.errors import BadInput, InvalidConfig, UnsuitableModel, did_you_mean
from acclimate.functional.gradient_sums import Granularity
from acclimate.functional.gradient_vmap import listed


def check_options(granularity: str, chunk: int | None, memory_budget: int) -> None:
    """Refuse settings that there are none of."""
    if granularity not in get_args(Granularity):
        hint = did_you_mean(granularity, get_args(Granularity))
        raise InvalidConfig(
            "unknown_name",
            f'expected a known granularity, found "{granularity}". {hint}',
            kind="granularity",
            name=granularity,
            known=get_args(Granularity),
        )
    if chunk is not None and chunk < 1:
        raise InvalidConfig(
            "out_of_range",
            f"expected chunk of at least 1 sample, found {chunk}. Leave it out.",
            option="chunk",
            found=chunk,
        )
    if memory_budget < 1:
        raise InvalidConfig(
            "out_of_range",
            f"expected a positive memory_budget in bytes, found {memory_budget}.",
            option="memory_budget",
            found=memory_budget,
        )


def check_samples(x: Tensor, x_transformed: Tensor, y: Tensor) -> None:
    """Refuse samples, transformed samples and labels that do not belong together."""
    is_labelled = y.dim() in (1, 3) and len(y) == len(x)
    if not (len(x) and x.shape == x_transformed.shape and is_labelled):
        shapes = tuple(x.shape), tuple(x_transformed.shape), tuple(y.shape)
        raise BadInput(
            "wrong_shape",
            "expected samples, the same samples transformed, and one label or mask for each, found "
            f"shapes {shapes[0]}, {shapes[1]} and {shapes[2]}. "
            "Give tensors (n, ...), (n, ...) and (n,) or (n, H, W), with n of at least 1.",
            found=shapes,
        )


def check_model(model: nn.Module) -> None:
    """Refuse a model in which a sample's gradient depends on chance or on its neighbours."""
    mixing = [
        name or "the model"
        for name, layer in model.named_modules()
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)
    ]
    random = [
        name or "the model"
        for name, layer in model.named_modules()
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0
    ]
    if mixing:
        does = "normalise with the statistics of the batch, which mixes samples"
        raise UnsuitableModel("batch_dependent", _refusal(does, mixing), layers=tuple(mixing))
    if random:
        does = "drop activations at random"
        raise UnsuitableModel("random_layers", _refusal(does, random), layers=tuple(random))


def _refusal(does: str, names: list[str]) -> str:
    return (
        "expected a model in which every sample's gradient stands for itself, but these "
        f"layers {does}: {listed(names)}. Call model.eval(), with running "
        "statistics in every BatchNorm layer."
    )
