"""Moments of features on source data, before and after a projection head, for TFA and TTT++."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from acclimate.errors import BadInput
from acclimate.functional.contrast import covariance_distance, feature_moments, mean_distance
from acclimate.functional.views import apply_views, get_views
from acclimate.introspect import ModelInfo
from acclimate.options import hp
from acclimate.parts.contrastive_head import read_head
from acclimate.parts.part import Computed, Context, Part, Saved, register_part
from acclimate.parts.source import regroup, take_first
from acclimate.schema import (
    Anything,
    Fields,
    Items,
    Maybe,
    Number,
    Schema,
    TensorOf,
    Where,
    positive,
)

_FEWEST = 4  # the minimum number of samples for two blocks with a covariance


def _is_pair(widths: list[int]) -> bool:
    return len(widths) == 2


def _schemas_of_space(space: str, width: int | str) -> dict[str, Schema]:
    return {
        f"contrast/{space}_mean": TensorOf((width,)),
        f"contrast/{space}_covariance": TensorOf((width, width)),
        f"contrast/{space}_mean_distance": positive(()),
        f"contrast/{space}_covariance_distance": positive(()),
    }


@register_part
@dataclass(frozen=True, kw_only=True)
class Contrast(Part):
    """Moments of the features in each space, and the projection head, for TFA and TTT++.

    The tensors are `contrast/encoder_mean` (d) and `contrast/encoder_covariance` (d, d; unbiased)
    of all samples, and `contrast/encoder_mean_distance` and `contrast/encoder_covariance_distance`:
    the mean distances of the other whole blocks from the first. With a head, there are the same
    tensors for `head`, and its weights `contrast_head/<name>`. (The authors' code excludes the
    first block from the moments; this implementation includes all samples.)
    """

    name: ClassVar[str] = "contrast"

    n_samples: int = hp(50_000, low=1, help="maximum number of source samples")
    batch_size: int = hp(
        1536,
        low=2,
        help="samples per block. Distances at test time are divided by those between blocks of "
        "the source, so use the number of samples that moments are computed over at test time: "
        "queue and batch together. A source of fewer than two blocks is halved",
    )
    views: Any = hp(
        "auto",
        help="transforms of the samples: a name, a list, or auto: crop+flip with a projection "
        "head, which the authors use and a jointly trained model has seen; none without one",
    )
    head: nn.Module | str | Path | None = hp(
        None,
        help="the projection head that was trained jointly with the model, which TTT++ needs: a "
        "file of `acclimate train --objective simclr`, or a module (Linear, ReLU, Linear)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.views != "auto":
            get_views(self.views)

    card_schema: ClassVar[Schema] = Fields(
        {"head": Maybe(Where(Items(Number(int, low=1, high=2**20), list), _is_pair, "no pair"))},
        others=Anything(),
    )

    @classmethod
    def tensor_schemas(cls, saved: Saved) -> Mapping[str, Schema]:
        schemas = _schemas_of_space("encoder", "features")
        if saved.card["head"] is not None:
            hidden, width = saved.card["head"]
            head = {
                "0.weight": (hidden, "features"),
                "0.bias": (hidden,),
                "2.weight": (width, hidden),
                "2.bias": (width,),
            }
            schemas |= _schemas_of_space("head", width)
            schemas |= {f"contrast_head/{name}": TensorOf(shape) for name, shape in head.items()}
        return schemas

    def to_card(self) -> dict[str, Any]:
        named = dataclasses.replace(self, head=None, views=self.chosen_views)
        return super(Contrast, named).to_card()

    @property
    def chosen_views(self) -> Any:
        """The views, with `"auto"` resolved.

        >>> Contrast(head="FILE").chosen_views, Contrast().chosen_views
        ('crop+flip', 'none')
        """
        if self.views != "auto":
            return self.views
        return "none" if self.head is None else "crop+flip"

    def check(self, model: nn.Module, info: ModelInfo) -> None:
        if self.head is not None:
            read_head(self.head, model, info.known_width)

    @torch.no_grad()
    def compute(self, context: Context) -> Computed:
        spaces: dict[str, nn.Module] = {"encoder": nn.Identity()}
        if self.head is not None:
            spaces["head"] = read_head(self.head, context.model, context.info.known_width)
        summaries = {space: _Summary() for space in spaces}
        for block in _blocks(_encode(context, self), self.batch_size):
            for space, project in spaces.items():
                summaries[space].add(project(block))
        n, batch_size = summaries["encoder"].n, summaries["encoder"].batch_size
        reference = next(iter(context.model.parameters()))
        precision = torch.float64 if reference.dtype == torch.float64 else torch.float32
        tensors = {
            f"contrast/{space}_{name}": value.to(precision)
            for space, summary in summaries.items()
            for name, value in summary.moments().items()
        }
        card = {**self.to_card(), "n_samples": n, "batch_size": batch_size, "head": None}
        if "head" in spaces:
            weights = spaces["head"].state_dict()
            tensors |= {f"contrast_head/{name}": value for name, value in weights.items()}
            card["head"] = [len(weights["0.weight"]), len(weights["2.weight"])]
        return tensors, card


class _Summary:
    """Running moments of one space over all samples and between blocks, in double on the CPU."""

    def __init__(self) -> None:
        self.n = self.batch_size = 0
        self._mean = self._scatter = torch.zeros(())
        self._first: tuple[Tensor, Tensor] | None = None
        self._distances: list[tuple[Tensor, Tensor]] = []

    def add(self, features: Tensor) -> None:
        """Add a block; only blocks as large as the first count for the distances."""
        features = features.cpu().double()
        mean, covariance = feature_moments(features)
        n, total = len(features), self.n + len(features)
        apart = mean - self._mean
        # The joint scatter of two groups: that of each group, and that of their means.
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
                "Expected source samples that differ, but the features of all blocks have the same "
                "mean or covariance, so that no distance can be measured. Pass different images.",
            )
        return {
            "mean": self._mean,
            "covariance": self._scatter / (self.n - 1),
            "mean_distance": of_mean,
            "covariance_distance": of_covariance,
        }


def _blocks(encoded: Iterable[tuple[Tensor]], size: int) -> Iterator[Tensor]:
    """Regroup features into at least two blocks of equal size, and a smaller last one.

    Features for fewer than two such blocks are halved.
    """
    blocks = (features for (features,) in regroup(encoded, size))
    first = list(islice(blocks, 2))
    if len(first) == 2 and len(first[1]) == size:
        yield from chain(first, blocks)
        return
    n = sum(map(len, first))
    if n < _FEWEST:
        raise BadInput(
            "too_few_samples",
            f"Expected at least {_FEWEST} source samples to measure the distance between two "
            f"halves of them, found {n}. Pass more source data; thousands are usual.",
            expected=_FEWEST,
            found=n,
        )
    yield from torch.split(torch.cat(first), n // 2)


def _encode(context: Context, part: Contrast) -> Iterator[tuple[Tensor]]:
    """Yield the features of views of the source, batch by batch."""
    views, encoder = get_views(part.chosen_views), context.encoder
    for x, _ in take_first(context.source.iterate("contrast"), part.n_samples):
        view = apply_views(views, x, context.source.normalization, context.generator)
        # Without views, other parts may have encoded the same images.
        yield ((encoder.encode(view) if views else encoder.recall(view)).features,)
