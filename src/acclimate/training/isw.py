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

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from acclimate.errors import BadInput, UnsuitableModel
from acclimate.functional.precision import at_least_float32
from acclimate.zoo.segmentation.whitening import whitening_layers

Values = npt.NDArray[np.float64]
_Indices = npt.NDArray[np.int64]
_Cost = Callable[[_Indices, _Indices], Values]


def find_covariances(features: Tensor) -> Tensor:
    """Return how the channels of each image vary together over its pixels, (n, channels, channels).

    Features are standardised image by image, (n, channels, height, width).
    """
    # In full precision: sums over all pixels lose too many digits in 16 bits.
    with torch.autocast(features.device.type, enabled=False):
        flat = at_least_float32(features).flatten(2)
        return flat @ flat.transpose(1, 2) / (flat.shape[2] - 1)


def find_variances(features: Tensor, jittered: Tensor) -> Tensor:
    """Return how much each covariance changes with the colours, (channels, channels).

    It is the variance over the two views, of each image by itself, averaged over the images.
    """
    # The variance of two numbers is the square of half their distance.
    half = (find_covariances(features) - find_covariances(jittered)) / 2
    return half.square().mean(dim=0)


def select_pairs(variances: Tensor, n_clusters: int = 3, n_kept: int = 1) -> Tensor:
    """Return which covariances depend on the style: a mask of pairs above the diagonal.

    Pairs are clustered by how much their covariance changes; the lowest `n_kept` are no style.
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

    The sum of their sizes may be `margin` without a loss, as in the paper's relaxed whitening.
    """
    sizes = (find_covariances(features).abs() * mask).sum(dim=(1, 2))
    return (sizes - margin).clamp_min(0).mean() / mask.sum().clamp_min(1)


def _keep(taken: dict[str, Tensor], name: str, _: nn.Module, __: object, output: Tensor) -> None:
    taken[name] = output


class SelectiveWhitening(nn.Module):
    """The loss on all whitening layers of a model, and what it has learned of the pairs."""

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
        """Decide which pairs are whitened from now on; return their number by layer."""
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
        losses = [
            whitening_loss(taken[name], self.get_buffer(f"mask{number}"))
            for number, name in enumerate(self._names)
        ]
        return torch.stack(losses).mean()


def cluster_line(values: Values, k: int) -> _Indices:
    """Return the group of each number by k-means, 0 for the smallest; equal numbers share a group.

    It is exact: on a line groups are intervals, so that dynamic programming finds those with the
    least squared distances. Where a group begins grows with where it ends, hence each round takes
    n log n steps (divide and conquer). There are fewer groups if there are fewer different numbers.

    >>> cluster_line(np.array([5.0, 0.1, 9.0, 0.2, 5.1]), 3).tolist()
    [1, 0, 2, 0, 1]
    """
    ordered = np.sort(values)
    k = min(k, len(np.unique(ordered)))
    starts = _find_starts(ordered, k)
    return np.searchsorted(ordered[starts[1:]], values, side="right").astype(np.int64)


def _find_starts(ordered: Values, k: int) -> list[int]:
    """Return where each of the best groups begins among sorted numbers."""
    n = len(ordered)
    # Centred and scaled: sums of squares of tiny numbers far from zero would lose their digits.
    scaled = (ordered - ordered.mean()) / (ordered.std() or 1.0)
    sums = np.concatenate([[0.0], np.cumsum(scaled)])
    squares = np.concatenate([[0.0], np.cumsum(scaled**2)])

    def cost(first: _Indices, end: _Indices) -> Values:
        total = sums[end] - sums[first]
        spread: Values = squares[end] - squares[first] - total**2 / (end - first)
        return spread

    ends = np.arange(1, n + 1)
    best = np.concatenate([[0.0], cost(np.zeros(n, np.int64), ends)])
    choices = []
    for n_groups in range(2, k + 1):
        best, chosen = _add_group(best, n_groups, n, cost)
        choices.append(chosen)
    starts, end = [], n
    for chosen in reversed(choices):
        end = int(chosen[end])
        starts.append(end)
    return [0, *reversed(starts)]


def _add_group(best: Values, n_groups: int, n: int, cost: _Cost) -> tuple[Values, _Indices]:
    """Return the least costs with one group more, by where it ends, and where it begins then."""
    found, chosen = np.full(n + 1, np.inf), np.zeros(n + 1, np.int64)
    # All intervals of ends of one level are worked on at once: low and high end, and the first and
    # last start that can be best for them.
    parts = np.array([[n_groups, n, n_groups - 1, n - 1]], np.int64)
    while len(parts):
        low, high, first, last = parts.T
        middle = (low + high) // 2
        counts = np.minimum(last, middle - 1) - first + 1
        offsets = np.concatenate([[0], np.cumsum(counts)[:-1]])
        starts = np.arange(counts.sum()) - np.repeat(offsets - first, counts)
        ends = np.repeat(middle, counts)
        values = best[starts] + cost(starts, ends)
        least = np.minimum.reduceat(values, offsets)
        hits = np.flatnonzero(values == np.repeat(least, counts))
        picked = starts[hits[np.searchsorted(hits, offsets)]]
        found[middle], chosen[middle] = least, picked
        left = np.stack([low, middle - 1, first, picked], axis=1)[low < middle]
        right = np.stack([middle + 1, high, picked, last], axis=1)[middle < high]
        parts = np.concatenate([left, right])
    return found, chosen
