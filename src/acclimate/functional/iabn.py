"""Instance-aware batch normalisation (IABN), which NOTE needs in the model that it adapts.

An image whose own statistics differ from the layer's by more than chance is normalised with
statistics moved towards its own; any other image is normalised as in BatchNorm. The layers must be
in a model *before* it is trained: they change the function of a model trained with BatchNorm.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from acclimate.errors import UnsuitableModel
from acclimate.functional.precision import at_least_float32

#: Differences of up to this many standard errors count as chance (k in the paper).
SHRINKAGE = 4.0


class InstanceAwareBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d that follows an image whose statistics are far from the layer's.

    Arguments and names of tensors are those of BatchNorm2d. Variances are unbiased, also those of a
    batch in training, as in the authors' code.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        shrinkage: float = SHRINKAGE,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.shrinkage = shrinkage

    @classmethod
    def from_batch_norm(cls, layer: nn.BatchNorm2d, shrinkage: float = SHRINKAGE) -> Self:
        """Return a layer that uses the parameters and buffers of a BatchNorm2d."""
        made = cls(layer.num_features, layer.eps, layer.momentum, False, False, shrinkage)
        made.affine, made.track_running_stats = layer.affine, layer.track_running_stats
        made._parameters.update(layer._parameters)
        made._buffers.update(layer._buffers)
        return made.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each image with the layer's statistics, possibly moved towards its own."""
        self._check_input_dim(x)
        precise = at_least_float32(x)
        dtype = precise.dtype
        mean, variance = self._layer_moments(precise)
        n = x.shape[2] * x.shape[3]
        if n > 1:  # a single position has no variance of its own
            own_variance, own_mean = torch.var_mean(precise, dim=(2, 3), keepdim=True)
            # The eps keeps the gradient of the root finite if a channel is constant.
            error_of_mean = ((variance + self.eps) / n).sqrt()
            error_of_variance = (variance + self.eps) * math.sqrt(2 / (n - 1))
            mean = mean + _shrink(own_mean - mean, self.shrinkage * error_of_mean)
            moved = _shrink(own_variance - variance, self.shrinkage * error_of_variance)
            variance = (variance + moved).clamp_min(0)
        normal = (precise - mean) * torch.rsqrt(variance + self.eps)
        if self.affine:
            normal = normal * self.weight.to(dtype).view(1, -1, 1, 1)
            normal = normal + self.bias.to(dtype).view(1, -1, 1, 1)
        return normal.to(x.dtype)

    def extra_repr(self) -> str:
        """Return the representation of a BatchNorm2d with the shrinkage."""
        base: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{base}, shrinkage={self.shrinkage:g}"

    def _layer_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the batch in training, otherwise the running ones."""
        shape = (1, -1, 1, 1)
        mean, variance = self.running_mean, self.running_var
        if not self.training and mean is not None and variance is not None:
            return mean.to(x.dtype).view(shape), variance.to(x.dtype).view(shape)
        n = x.numel() // x.shape[1]
        variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=min(1, n - 1))
        if self.training and self.track_running_stats:
            self._keep(mean.detach(), variance.detach())
        return mean.view(shape), variance.view(shape)

    @torch.no_grad()
    def _keep(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        share = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if share is None else share
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share or 0.0)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share or 0.0)


def _shrink(difference: Tensor, threshold: Tensor) -> Tensor:
    """Move differences towards zero by the threshold, but not beyond (soft-shrinkage)."""
    return (difference - threshold).clamp_min(0) - (-difference - threshold).clamp_min(0)


def iabn_layers(model: nn.Module) -> dict[str, InstanceAwareBatchNorm2d]:
    """Return the instance-aware layers by name."""
    modules = model.named_modules()
    return {name: m for name, m in modules if isinstance(m, InstanceAwareBatchNorm2d)}


def convert(model: nn.Module, shrinkage: float = SHRINKAGE) -> nn.Module:
    """Replace every BatchNorm2d in a model with its instance-aware form, in place.

    Do so before the model is trained. Parameters, buffers and their names are unchanged. The same
    model is returned. One without BatchNorm2d layers inside raises UnsuitableModel.

    >>> net = convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    >>> type(net[1]).__name__
    'InstanceAwareBatchNorm2d'
    """
    # A layer that is used twice must stay one layer.
    made: dict[nn.Module, InstanceAwareBatchNorm2d] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.BatchNorm2d:
                if child not in made:
                    made[child] = InstanceAwareBatchNorm2d.from_batch_norm(child, shrinkage)
                setattr(parent, name, made[child])
    if not made:
        raise UnsuitableModel(
            "missing_layers",
            "Expected a model with BatchNorm2d layers, found none to convert. Pass the model "
            "before it is wrapped or converted.",
            layers=("BatchNorm2d",),
        )
    return model
