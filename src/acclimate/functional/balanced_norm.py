"""BatchNorm statistics that count every class alike, whatever the mixture of a stream (TRIBE).

Each layer keeps mean and variance of each channel for each predicted class. It normalises with the
moments of the mixture in which all classes have the same weight. A stream that shows one class for
a while therefore moves the moments of that class, and those of the layer by 1/K of it.

Moments are tensors (2, K, C): means and biased variances of K classes and C channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from acclimate.functional.norm import batch_norm_layers, change_inputs, renormalise


def start_moments(mean: Tensor, variance: Tensor, n_classes: int) -> Tensor:
    """Return moments in which every class has the given mean and variance, each (C)."""
    return torch.stack([mean, variance]).detach().unsqueeze(1).repeat(1, n_classes, 1)


def move_moments(moments: Tensor, x: Tensor, labels: Tensor, rate: float, sharing: float) -> Tensor:
    """Return the moments after a batch (B, C, ...). Gradients flow through the batch.

    A class with n samples moves by the share min(rate · n, 1) towards their moments; the rate is η
    in the paper. All classes, also those that are not in the batch, take a share of the mean step
    over the classes in it (`sharing`, γ), and the rest by themselves.
    """
    means, variances = moments.unbind()
    flat = x.to(means.dtype).reshape(len(x), x.shape[1], -1)
    spread, centre = torch.var_mean(flat, dim=2, correction=0)
    offset = centre - means[labels]
    n = torch.bincount(labels, minlength=len(means)).to(means.dtype).unsqueeze(1)
    step = (1 / n.clamp_min(1)).clamp_max(rate)
    n_seen = (n > 0).sum()

    def sum_by_class(values: Tensor) -> Tensor:
        return torch.zeros_like(means).index_add(0, labels, values)

    # All of these are zero for a class that is not in the batch.
    shift = step * sum_by_class(offset)
    gained = step * sum_by_class(spread + offset**2) - shift**2
    lost = step * n
    means = means + (1 - sharing) * shift + sharing * shift.sum(dim=0) / n_seen
    variances = variances + (1 - sharing) * (gained - lost * variances)
    shared = gained.sum(dim=0) - lost.sum() * variances
    return torch.stack([means, variances + sharing * shared / n_seen])


def mix_classes(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance (C) of the mixture of all classes with equal weights.

    The variance of the class means is the unbiased one, as in the authors' code.
    """
    means, variances = moments.unbind()
    between = means.var(dim=0, correction=min(1, len(means) - 1))
    return means.mean(dim=0), variances.mean(dim=0) + between


@contextmanager
def use_balanced(
    model: nn.Module,
    moments: Mapping[str, Tensor],
    labels: Tensor | None = None,
    n_classes: int = 0,
    rate: float = 0.0,
    sharing: float = 0.0,
) -> Iterator[dict[str, Tensor]]:
    """Normalise with balanced statistics in every BatchNorm layer that has running statistics.

    Run the model in evaluation mode inside. The running statistics do not change.

    Args:
        model: Any module.
        moments: Moments by the name of the layer. A layer without moments starts with its running
            statistics.
        labels: Predicted classes of the batch; None to use the moments as they are.
        n_classes: Number of classes, to start moments with.
        rate: See `move_moments`.
        sharing: See `move_moments`.

    Yields:
        A dict that takes the moments of each layer after the batch, if there are labels and the
        moments are finite. A layer whose input has another number of rows is left out.
    """
    moved: dict[str, Tensor] = {}

    def balance(name: str, layer: _BatchNorm, x: Tensor) -> Tensor:
        mean, variance = layer.running_mean, layer.running_var
        if mean is None or variance is None:
            return x
        own = moved.get(name, moments.get(name))
        if labels is not None and len(labels) == len(x):
            own = start_moments(mean, variance, n_classes) if own is None else own
            own = move_moments(own, x, labels, rate, sharing)
            if bool(own.isfinite().all()):
                moved[name] = own.detach()
        return x if own is None else renormalise(layer, x, *mix_classes(own))

    with change_inputs(batch_norm_layers(model), balance):
        yield moved
