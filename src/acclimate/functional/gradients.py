"""Cosines between the gradients of two views of a sample, for every parameter (paper, eq. 2).

The plain way is two passes a sample:

    for sample, view, label in zip(x, x_transformed, y):
        g = torch.autograd.grad(cross_entropy(model(sample[None]), label[None]), parameters)
        h = torch.autograd.grad(cross_entropy(model(view[None]), label[None]), parameters)
        for total, a, b in zip(totals, g, h):
            total += cosine_similarity(a.flatten(), b.flatten(), dim=0)

`gradient_cosines` gives the same numbers from batches. One forward and one backward over both
views yield every layer's input and output gradient, from which a rule for the layer's kind makes
the per-sample gradients, or only their inner products if that is cheaper. Parameters without such
a rule (a class token, attention's packed projection, ...) go through `torch.func`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from acclimate.errors import BadInput, InvalidConfig, UnsuitableModel, did_you_mean
from acclimate.functional.gradient_pass import RuledPass
from acclimate.functional.gradient_sums import CosineSum, CosineSums, Granularity
from acclimate.functional.gradient_survey import survey
from acclimate.functional.gradient_vmap import general_gradients, listed

__all__ = ["CosineSum", "Granularity", "gradient_cosines"]

#: Bytes for what one pass keeps. Less makes batches too small to be worth it; more is slower again
#: on a CPU, where fresh memory is paid in page faults.
MEMORY_BUDGET = 192 * 2**20


def gradient_cosines(
    forward: Callable[[Tensor], Tensor],
    model: nn.Module,
    x: Tensor,
    x_transformed: Tensor,
    y: Tensor,
    granularity: Granularity = "tensor",
    chunk: int | None = None,
    memory_budget: int = MEMORY_BUDGET,
    progress: Callable[[int], None] | None = None,
) -> dict[str, CosineSum]:
    """Return, for every parameter, the sum over samples of cosines between two views' gradients.

    The gradient is that of the cross entropy. A sample whose gradient is zero in either view adds
    0, as in `torch.nn.functional.cosine_similarity`. Gradients of tied weights and of layers
    called several times are added up first. Parameters count whether or not they require
    gradients. Everything about the model is left as it was found.

    Args:
        forward: From inputs to logits (B, K); runs `model`.
        model: The model, in evaluation mode.
        x: Samples, (n, ...).
        x_transformed: The same samples, transformed.
        y: Their labels, (n,).
        granularity: What gets one cosine: a parameter tensor, all tensors a module owns, one
            index of a tensor's first dimension, or every single weight.
        chunk: Samples in one pass; chosen from `memory_budget` if None.
        memory_budget: Bytes one pass may keep for its backward; the peak is up to twice that
            (measured). A single sample may need more.
        progress: Called with the number of samples finished so far.

    Returns:
        By parameter name, in the order of `model.named_parameters()`. Shapes are () for "tensor"
        and "module", (C, 1, ...) for "channel" and the parameter's own for "parameter".

    Raises:
        UnsuitableModel: Samples of a batch influence each other, `forward` does not return
            logits (B, K), or `torch.func` is needed and cannot do the model.
        BadInput: The arguments do not belong together, or gradients are not finite.
    """
    _check_arguments(x, x_transformed, y, granularity, chunk, memory_budget)
    _check_model(model)
    parameters = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
    sums = CosineSums(dict(model.named_parameters()), granularity)
    # A pass needs autograd, whatever the caller has switched off.
    with torch.inference_mode(False), torch.enable_grad(), _flags_given_back(model):
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        found = survey(forward, model, parameters, torch.cat([x[:1], x_transformed[:1], x[:1]]))
        for parameter in parameters.values():
            parameter.requires_grad_(False)
        size = chunk or _fitting(memory_budget, found.bytes_per_row, parameters, found.shared)
        if chunk is None:
            size = ceil(len(x) / ceil(len(x) / size))  # as many passes, but of equal size
        for start in range(0, len(x), size):
            part = slice(start, min(start + size, len(x)))
            rows = torch.stack([x[part], x_transformed[part]], 1).flatten(0, 1)
            labels = y[part].repeat_interleave(2)
            done = RuledPass(model, parameters, found, sums, len(rows)).run(forward, rows, labels)
            rest = {name: parameters[name] for name in found.uses if name not in done}
            if rest:
                # torch.func keeps several times what one ordinary pass keeps.
                step = _fitting(memory_budget, 3 * found.bytes_per_row, parameters, rest)
                _add_general(forward, model, rest, sums, rows, labels, step)
            sums.close_chunk()
            if progress is not None:
                progress(part.stop)
    result = sums.result()
    broken = [name for name, found_sum in result.items() if not found_sum.total.isfinite().all()]
    if broken:
        raise BadInput(
            f"expected finite gradients, found infinite or undefined ones in {listed(broken)}. "
            "Look for such values in the samples and in the model's weights."
        )
    return result


def _add_general(
    forward: Callable[[Tensor], Tensor],
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    sums: CosineSums,
    rows: Tensor,
    labels: Tensor,
    step: int,
) -> None:
    """Add the cosines of `parameters` for one chunk by `torch.func`, `step` pairs at a time."""
    n_pairs = len(rows) // 2
    for start in range(0, n_pairs, step):
        pairs = slice(start, min(start + step, n_pairs))
        part = slice(2 * pairs.start, 2 * pairs.stop)
        gradients = general_gradients(forward, model, parameters, rows[part], labels[part])
        for name in parameters:
            sums.add_gradients(name, gradients.pop(name), pairs, n_pairs)


def _fitting(
    memory_budget: int,
    bytes_per_row: int,
    parameters: Mapping[str, Tensor],
    materialized: Iterable[str],
) -> int:
    """Return how many pairs of rows fit if the gradients of some parameters are held for each."""
    held = sum(parameters[name].numel() * parameters[name].element_size() for name in materialized)
    return max(1, memory_budget // (2 * (bytes_per_row + held) + 1))


@contextmanager
def _flags_given_back(model: nn.Module) -> Iterator[None]:
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def _check_arguments(
    x: Tensor,
    x_transformed: Tensor,
    y: Tensor,
    granularity: str,
    chunk: int | None,
    memory_budget: int,
) -> None:
    if granularity not in get_args(Granularity):
        hint = did_you_mean(granularity, get_args(Granularity))
        raise InvalidConfig(f'expected a known granularity, found "{granularity}". {hint}')
    if chunk is not None and chunk < 1:
        raise InvalidConfig(f"expected chunk of at least 1 sample, found {chunk}. Leave it out.")
    if memory_budget < 1:
        raise InvalidConfig(f"expected a positive memory_budget in bytes, found {memory_budget}.")
    if not (len(x) and x.shape == x_transformed.shape and y.shape == x.shape[:1]):
        raise BadInput(
            "expected samples, the same samples transformed, and one label for each, found shapes "
            f"{tuple(x.shape)}, {tuple(x_transformed.shape)} and {tuple(y.shape)}. "
            "Give tensors (n, ...), (n, ...) and (n,) with n of at least 1."
        )


def _check_model(model: nn.Module) -> None:
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
    for names, does in (
        (mixing, "normalise with the statistics of the batch, which mixes samples"),
        (random, "drop activations at random"),
    ):
        if names:
            raise UnsuitableModel(
                "expected a model in which every sample's gradient stands for itself, but these "
                f"layers {does}: {listed(names)}. Call model.eval(), with running "
                "statistics in every BatchNorm layer."
            )
