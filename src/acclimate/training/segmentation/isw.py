"""Instance selective whitening: channels may vary together unless that depends on the style.

Choi et al., "RobustNet: Improving Domain Generalization in Urban-Scene Segmentation via Instance
Selective Whitening", CVPR 2021, https://arxiv.org/abs/2103.15597.

Of features that are standardised image by image, the covariances of all pairs of channels are
taken, of an image and of the same image in other colours. Pairs whose covariance changes with the
colours carry the style; they are found by clustering how much it changes, averaged over the
training images, and pushed towards zero from then on. The other pairs are left alone.

What the paper leaves open, decided here as follows: the clusters are of the pairs themselves (the
authors' program clusters the whole matrix, zeros on and below the diagonal included), and all but
the lowest of the three are whitened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from acclimate.errors import BadInput, UnsuitableModel
from acclimate.training.segmentation.clustering import cluster_line
from acclimate.zoo.segmentation.whitening import whitening_layers


def find_covariances(features: Tensor) -> Tensor:
    """Return how the channels of each image vary together over its pixels, (n, channels, channels).

    Args:
        features: Standardised image by image, (n, channels, height, width).
    """
    # In full precision: sums over all pixels lose too many digits in 16 bits.
    with torch.autocast(features.device.type, enabled=False):
        flat = (features.float() if features.dtype.itemsize < 4 else features).flatten(2)
        return flat @ flat.transpose(1, 2) / (flat.shape[2] - 1)


def find_variances(features: Tensor, jittered: Tensor) -> Tensor:
    """Return how much each covariance changes with the colours, (channels, channels).

    It is the variance over the two views, of each image by itself, averaged over the images.

    Args:
        features: Standardised image by image, (n, channels, height, width).
        jittered: Of the same images in other colours.
    """
    # The variance of two numbers is the square of half their distance.
    half = (find_covariances(features) - find_covariances(jittered)) / 2
    return half.square().mean(dim=0)


def select_pairs(variances: Tensor, n_clusters: int = 3, n_kept: int = 1) -> Tensor:
    """Return which covariances depend on the style: a mask of pairs above the diagonal.

    Args:
        variances: How much each covariance changes, (channels, channels).
        n_clusters: Into which the pairs are grouped by that.
        n_kept: How many clusters, the lowest, are no style.
    """
    rows, columns = np.triu_indices(len(variances), 1)
    values = variances.double().cpu().numpy()[rows, columns]
    mask = torch.zeros_like(variances, dtype=torch.bool)
    if len(values):
        chosen = cluster_line(values, n_clusters) >= n_kept
        mask[rows[chosen], columns[chosen]] = True
    return mask


def whitening_loss(features: Tensor, mask: Tensor, margin: float = 0.0) -> Tensor:
    """Return the mean size of the masked covariances, averaged over the images.

    Args:
        features: Standardised image by image, (n, channels, height, width).
        mask: Which pairs are to be zero, (channels, channels); without any the loss is zero.
        margin: What the sum of their sizes may be without a loss; the paper's relaxed whitening
            of all pairs has one.
    """
    sizes = (find_covariances(features).abs() * mask).sum(dim=(1, 2))
    return (sizes - margin).clamp_min(0).mean() / mask.sum().clamp_min(1)


def _keep(taken: dict[str, Tensor], name: str, _: nn.Module, __: object, output: Tensor) -> None:
    taken[name] = output


class SelectiveWhitening(nn.Module):
    """The loss on all whitening layers of a model, and what it has learned of the pairs.

    Args:
        model: With whitening layers.
        n_clusters: Into which pairs are grouped.

    Raises:
        UnsuitableModel: It has no such layer.
    """

    is_selected: Tensor
    n_seen: Tensor

    def __init__(self, model: nn.Module, n_clusters: int = 3) -> None:
        super().__init__()
        layers = whitening_layers(model)
        if not layers:
            raise UnsuitableModel(
                "missing_layers",
                "Expected a model with instance whitening in its first stages, found none. Add "
                "acclimate.zoo.segmentation.InstanceWhitening layers, or train with --objective "
                "cross_entropy.",
                layers=("InstanceWhitening",),
            )
        self._n_clusters, self._names = n_clusters, tuple(layers)
        self.register_buffer("is_selected", torch.tensor(False))
        self.register_buffer("n_seen", torch.tensor(0))
        for number, layer in enumerate(layers.values()):
            square = (layer.n_channels, layer.n_channels)
            self.register_buffer(f"variance{number}", torch.zeros(square))
            self.register_buffer(f"mask{number}", torch.zeros(square, dtype=torch.bool))

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[dict[str, Tensor]]:
        """Give a dictionary that the features of each whitening layer are put into."""
        taken: dict[str, Tensor] = {}
        layers = whitening_layers(model)
        hooks = [
            layers[name].register_forward_hook(partial(_keep, taken, name)) for name in self._names
        ]
        try:
            yield taken
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def observe(self, model: nn.Module, x: Tensor, jittered: Tensor) -> None:
        """Add up how much covariances change between images and their jittered views."""
        with self.watch(model) as plain:
            model(x)
        with self.watch(model) as other:
            model(jittered)
        for number, name in enumerate(self._names):
            changes = find_variances(plain[name], other[name])
            self.get_buffer(f"variance{number}").add_(changes, alpha=len(x))
        self.n_seen += len(x)

    def select(self) -> list[int]:
        """Decide which pairs are whitened from now on; return their number by layer.

        Raises:
            BadInput: No image was observed.
        """
        if not int(self.n_seen):
            raise BadInput(
                "too_few_samples",
                "No image has been observed. Call observe() on the training images first.",
                expected=1,
                found=0,
            )
        counts = []
        for number in range(len(self._names)):
            variances = self.get_buffer(f"variance{number}") / self.n_seen
            mask = self.get_buffer(f"mask{number}")
            mask.copy_(select_pairs(variances, self._n_clusters))
            counts.append(int(mask.sum()))
        self.is_selected.fill_(True)
        return counts

    def forward(self, taken: Mapping[str, Tensor]) -> Tensor:
        """Return the mean loss over the layers, for what `watch` gave."""
        losses = [
            whitening_loss(taken[name], self.get_buffer(f"mask{number}"))
            for number, name in enumerate(self._names)
        ]
        return torch.stack(losses).mean()
