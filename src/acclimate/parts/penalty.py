"""The penalties of SWR, computed on source data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn

from acclimate.errors import AcclimateWarning
from acclimate.functional.norm import use_statistics
from acclimate.functional.per_sample import GradientCosines, Granularity, summed_cross_entropy
from acclimate.functional.pixels import image_losses
from acclimate.functional.swr_nsp import penalties, unit_shape
from acclimate.functional.views import apply_views, get_views
from acclimate.introspect import ModelInfo
from acclimate.options import hp
from acclimate.parts.part import Computed, Context, Part, Saved, check_views, register_part
from acclimate.parts.source import check_labelled, iterate_blocks
from acclimate.schema import Anything, Choice, Fields, Schema, TensorOf

#: Samples per block; random views do not depend on the batch size of the source.
BLOCK = 128
#: The same for models that predict every pixel, whose images are large.
PIXEL_BLOCK = 8


@register_part
@dataclass(frozen=True, kw_only=True)
class Penalty(Part):
    """How much each parameter's gradient changes under a shift (paper, eq. 2).

    It uses the first `n_samples` samples of the source, so the loader should be shuffled. The
    tensors are `penalty/<parameter>` and the mean cosines `cosine/<parameter>`.
    """

    name: ClassVar[str] = "penalty"
    dense: ClassVar[bool] = True

    n_samples: int = hp(1024, low=1, help="number of source samples (N)")
    granularity: str = hp(
        "tensor",
        choices=get_args(Granularity),
        help="the unit that has one penalty; a tensor is one entry of named_parameters(), of which "
        'the paper counts 161 in a ResNet-50, so this is its "layer"',
    )
    exponent: float = hp(
        2.0,
        low=1e-6,
        help="exponent applied after scaling to [0, 1]; 1 and 3 are variants of the paper",
    )
    views: Any = hp("swr", help="transforms that simulate the shift: a name or a list")

    def __post_init__(self) -> None:
        super().__post_init__()
        get_views(self.views)

    card_schema: ClassVar[Schema] = Fields(
        {"granularity": Choice(get_args(Granularity))}, others=Anything()
    )

    @classmethod
    def tensor_schemas(cls, saved: Saved) -> Mapping[str, Schema]:
        granularity = saved.card["granularity"]

        def make(shape: tuple[int, ...], prefix: str) -> Schema:
            unit = unit_shape(shape, granularity)
            if prefix == "penalty":
                return TensorOf(unit, low=0, high=1)
            return TensorOf(unit, low=-1.1, high=1.1, nan=True)  # rounded

        return saved.by_parameter(("penalty", "cosine"), make)

    def check(self, model: nn.Module, info: ModelInfo) -> None:
        if info.is_dense:
            check_views(self.views, 'Penalty(views="swr")')

    def compute(self, context: Context) -> Computed:
        model, source = context.model, context.source
        views = get_views(self.views)
        ignored = source.ignore_label
        labels: set[int] = set()
        n = n_unlabelled = 0

        def pixel_loss(logits: Tensor, y: Tensor) -> Tensor:
            return image_losses(logits, y, -1 if ignored is None else ignored).sum()

        granularity: Any = self.granularity
        loss = summed_cross_entropy if ignored is None else pixel_loss
        sums = GradientCosines(context.logits, model, granularity, speed=context.speed, loss=loss)
        size = BLOCK if ignored is None else PIXEL_BLOCK
        with use_statistics(model, "source"):
            for x, y in iterate_blocks(source, "penalty", self.n_samples, size):
                view = apply_views(views, x, source.normalization, context.generator)
                if ignored is not None:
                    labelled = (y != ignored).flatten(1).any(dim=1)
                    n_unlabelled += int((~labelled).sum())
                    x, view, y = x[labelled], view[labelled], y[labelled]
                if len(x):
                    sums.add(x, view, y)
                labels |= set(y.unique().tolist()) - {ignored}  # type: ignore[no-untyped-call]
                n += len(x)
                if source.progress is not None:
                    source.progress("penalty", n, self.n_samples)
        check_labelled(n)
        _warn(n + n_unlabelled, n_unlabelled, self.n_samples, len(labels), source.n_classes)
        cosines = {
            name: (found.total / n).where(found.seen, torch.nan)
            for name, found in sums.result().items()
        }
        tensors = {f"cosine/{name}": value for name, value in cosines.items()}
        weights = penalties(cosines, self.exponent)
        tensors |= {f"penalty/{name}": value for name, value in weights.items()}
        card = {**self.to_card(), "n_samples": n, "n_units": _n_units(weights, self.granularity)}
        return tensors, card if ignored is None else {**card, "n_unlabelled": n_unlabelled}


def _n_units(weights: dict[str, Tensor], granularity: str) -> int:
    if granularity == "module":
        return len({name.rpartition(".")[0] for name in weights})
    return sum(value.numel() for value in weights.values())


def _warn(n: int, n_unlabelled: int, wanted: int, n_labels: int, n_classes: int) -> None:
    """Warn about a source of few images, without labels, or sorted by class."""
    n_used, notes = n - n_unlabelled, []
    if n < wanted:
        used = f"{n_used} were used, {n_unlabelled} have no labelled pixel"
        text = (
            f"Expected {wanted} source samples for the penalty, but the source has only {n}: "
            f"{used if n_unlabelled else 'all were used'}. The paper finds the penalty stable from "
            "256 samples on."
        )
        notes.append(AcclimateWarning("few_samples", text, found=n_used, expected=wanted))
    elif n_unlabelled:
        text = (
            f"{n_unlabelled} of {n} source images for the penalty have no labelled pixel and were "
            f"skipped; {n_used} were used."
        )
        notes.append(AcclimateWarning("unlabelled_images", text, n=n_unlabelled))
    if n_labels < min(n_classes, n) / 2:
        text = (
            f"The {n} source samples for the penalty contain only {n_labels} of {n_classes} "
            "classes. The source seems to be sorted by class. Shuffle it."
        )
        notes.append(AcclimateWarning("sorted_source", text, found=n_labels, expected=n_classes))
    for note in notes:
        warnings.warn(note, stacklevel=4)
