"""How features are spread on source data, before and after a projection head: for TFA and TTT++."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.errors import BadInput
from acclimate.functional.contrast import covariance_distance, feature_moments, mean_distance
from acclimate.functional.views import apply_views, get_views
from acclimate.parts.encoder import Encoder
from acclimate.parts.options import ContrastOptions, to_card
from acclimate.parts.source import Source
from acclimate.taps import Anatomy

_FEWEST = 4  # samples that make two blocks with a covariance


@torch.no_grad()
def prepare_contrast(
    model: nn.Module,
    anatomy: Anatomy,
    source: Source,
    options: ContrastOptions,
    head: nn.Sequential | None,
    generator: torch.Generator,
    encoder: Encoder | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return moments in each space and the head's weights, and the part's card.

    `contrast/encoder_mean` (d) and `contrast/encoder_covariance` (d, d; unbiased), of all samples;
    `contrast/encoder_mean_distance` and `contrast/encoder_covariance_distance`: how far they are
    from those of the first block in the other whole blocks, on average. The same for `head`, if
    there is one, and its weights as `contrast_head/<name>`. (The authors' code leaves the first
    block out of the moments; here no sample is.)
    """
    options = options.for_head(head is not None)
    spaces: dict[str, Callable[[Tensor], Tensor]] = {"encoder": lambda features: features}
    if head is not None:
        spaces["head"] = head
    summaries = {space: _Summary() for space in spaces}
    encoder = Encoder(model, anatomy) if encoder is None else encoder
    encoded = _encode(encoder, source, options, generator)
    for block in _blocks(encoded, options.batch_size):
        for space, project in spaces.items():
            summaries[space].add(project(block))
    n, batch_size = summaries["encoder"].n, summaries["encoder"].batch_size
    reference = next(iter(model.parameters()))
    precision = torch.float64 if reference.dtype == torch.float64 else torch.float32
    tensors = {
        f"contrast/{space}_{name}": value.to(precision)
        for space, summary in summaries.items()
        for name, value in summary.moments().items()
    }
    card = {**to_card(options), "n_samples": n, "batch_size": batch_size, "head": None}
    if head is not None:
        weights = head.state_dict()
        tensors |= {f"contrast_head/{name}": value for name, value in weights.items()}
        card["head"] = [len(weights["0.weight"]), len(weights["2.weight"])]
    return tensors, card


class _Summary:
    """Moments of one space under way: of all samples, and between blocks; on the CPU, in double."""

    def __init__(self) -> None:
        self.n = self.batch_size = 0
        self._mean = self._scatter = torch.zeros(())
        self._first: tuple[Tensor, Tensor] | None = None
        self._distances: list[tuple[Tensor, Tensor]] = []

    def add(self, features: Tensor) -> None:
        """Take a block in; only one as large as the first says how far blocks are apart."""
        features = features.cpu().double()
        mean, covariance = feature_moments(features)
        n, total = len(features), self.n + len(features)
        apart = mean - self._mean
        # What two groups scatter together: each by itself, and their means around the common one.
        between = apart[:, None] * apart * (self.n * n / total)
        self._scatter = self._scatter + covariance * (n - 1) + between
        self._mean = self._mean + apart * (n / total)
        self.n = total
        if self._first is None:
            self._first, self.batch_size = (mean, covariance), n
            return
        if n < self.batch_size:
            return
        first_mean, first_covariance = self._first
        self._distances.append(
            (mean_distance(first_mean, mean), covariance_distance(first_covariance, covariance))
        )

    def moments(self) -> dict[str, Tensor]:
        """Return the moments by name."""
        of_mean, of_covariance = (
            torch.stack(values).mean() for values in zip(*self._distances, strict=True)
        )
        if not (of_mean > 0 and of_covariance > 0):
            raise BadInput(
                "degenerate_source",
                "the features of all blocks of the source have the same mean or covariance, so "
                "that no distance can be measured. Give different images, not one again and again.",
            )
        return {
            "mean": self._mean,
            "covariance": self._scatter / (self.n - 1),
            "mean_distance": of_mean,
            "covariance_distance": of_covariance,
        }


def _blocks(encoded: Iterable[Tensor], size: int) -> Iterator[Tensor]:
    """Regroup features into blocks of one size, the last smaller; at least two are of that size.

    Features for less than two such blocks are halved.
    """
    held: list[Tensor] = []
    n_held, started = 0, False
    for features in encoded:
        held.append(features)
        n_held += len(features)
        while n_held >= (size if started else 2 * size):
            started = True
            together = torch.cat(held)
            yield together[:size]
            held = [together[size:]]
            n_held -= size
    if not started and n_held < _FEWEST:
        raise BadInput(
            "too_few_samples",
            f"expected at least {_FEWEST} source samples, to measure how far two halves of them "
            f"are apart, found {n_held}. Give more source data: thousands are usual.",
            expected=_FEWEST,
            found=n_held,
        )
    if n_held:
        yield from torch.split(torch.cat(held), size if started else n_held // 2)


def _encode(
    encoder: Encoder, source: Source, options: ContrastOptions, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield the features of views of the source, batch by batch as it comes."""
    views = get_views(options.views)
    left = options.n_samples
    for x, _ in source.iterate("contrast"):
        view = apply_views(views, x[:left], source.normalization, generator)
        # Without views, these are images that other parts have seen.
        yield (encoder.encode(view) if views else encoder.recall(view)).features
        left -= len(view)
        if left == 0:
            return
