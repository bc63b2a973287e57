"""The penalty vector of SWR, from source data."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.errors import AcclimateWarning, BadInput, InvalidConfig
from acclimate.functional.gradient_pass import summed_cross_entropy
from acclimate.functional.gradients import GradientCosines
from acclimate.functional.norm import use_statistics
from acclimate.functional.penalty import penalties
from acclimate.functional.pixels import image_losses
from acclimate.functional.precision import SpeedName
from acclimate.functional.views import apply_views, get_views
from acclimate.parts.options import PenaltyOptions, to_card
from acclimate.parts.source import Source, iterate_blocks
from acclimate.taps import Anatomy, get_logits

#: Samples taken together; random draws do not depend on the batch size of the source.
BLOCK = 128
#: The same for images of which every pixel is predicted, which are large.
PIXEL_BLOCK = 8


def prepare_penalty(
    model: nn.Module,
    anatomy: Anatomy,
    source: Source,
    options: PenaltyOptions,
    generator: torch.Generator,
    speed: SpeedName = "exact",
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return penalties and mean cosines by parameter name, and the part's card.

    The model is frozen, in evaluation mode. Samples are the source's first `n_samples`, in its
    order: give a shuffled loader.
    """
    views = get_views(options.views)
    ignored = source.ignore_label
    if ignored is not None and views.move_pixels:
        raise InvalidConfig(
            "views_move_pixels",
            "expected views that leave every pixel in its place, so that masks still fit, found "
            'crops or mirror images. Use PenaltyOptions(views="swr"), or another such set.',
        )
    labels: set[int] = set()
    n = n_unlabelled = 0

    def forward(x: Tensor) -> Tensor:
        return get_logits(model(x), anatomy.logits_at)

    def pixel_loss(logits: Tensor, y: Tensor) -> Tensor:
        return image_losses(logits, y, -1 if ignored is None else ignored).sum()

    loss = summed_cross_entropy if ignored is None else pixel_loss
    sums = GradientCosines(forward, model, options.granularity, speed=speed, loss=loss)
    size = BLOCK if ignored is None else PIXEL_BLOCK
    with use_statistics(model, "source"):
        for x, y in iterate_blocks(source, "penalty", options.n_samples, size):
            view = apply_views(views, x, source.normalization, generator)
            if ignored is not None:
                labelled = (y != ignored).flatten(1).any(dim=1)
                n_unlabelled += int((~labelled).sum())
                x, view, y = x[labelled], view[labelled], y[labelled]
            if len(x):
                sums.add(x, view, y)
            labels |= set(y.unique().tolist()) - {ignored}  # type: ignore[no-untyped-call]
            n += len(x)
            if source.progress is not None:
                source.progress("penalty", n, options.n_samples)
    _check_labelled(n, n_unlabelled, options.n_samples)
    _warn(n + n_unlabelled, n_unlabelled, options.n_samples, len(labels), source.n_classes)
    cosines = {
        name: (found.total / n).where(found.seen, torch.nan)
        for name, found in sums.result().items()
    }
    tensors = {f"cosine/{name}": value for name, value in cosines.items()}
    weights = penalties(cosines, options.exponent)
    tensors |= {f"penalty/{name}": value for name, value in weights.items()}
    card = {**to_card(options), "n_samples": n, "n_units": _n_units(weights, options)}
    return tensors, card if ignored is None else {**card, "n_unlabelled": n_unlabelled}


def _check_labelled(n: int, n_unlabelled: int, wanted: int) -> None:
    """Refuse a source without any label, and warn of images that have none.

    Where the source has fewer images than are wanted, that warning tells of these as well.
    """
    if n == 0:
        raise BadInput(
            "no_labelled_pixels",
            f"expected masks with labels, but in all {n_unlabelled} of them every pixel is to be "
            "ignored. Check the masks, and ignore_label.",
        )
    if n_unlabelled and n + n_unlabelled >= wanted:
        warnings.warn(
            AcclimateWarning(
                "unlabelled_images",
                f"{n_unlabelled} of {n + n_unlabelled} source images for the penalty have no "
                f"labelled pixel: they were left out, and {n} were used.",
                n=n_unlabelled,
            ),
            stacklevel=4,
        )


def _n_units(weights: dict[str, Tensor], options: PenaltyOptions) -> int:
    if options.granularity == "module":
        return len({name.rpartition(".")[0] for name in weights})
    return sum(value.numel() for value in weights.values())


def _warn(n: int, n_unlabelled: int, wanted: int, n_labels: int, n_classes: int) -> None:
    if n < wanted:
        used = "all were used"
        if n_unlabelled:
            used = f"{n - n_unlabelled} were used, {n_unlabelled} have no labelled pixel"
        warnings.warn(
            AcclimateWarning(
                "few_samples",
                f"the penalty was to be measured on {wanted} source samples, but the source has "
                f"only {n}: {used}. The paper finds it stable from 256 on.",
                found=n - n_unlabelled,
                expected=wanted,
            ),
            stacklevel=4,
        )
    if n_labels < min(n_classes, n) / 2:
        warnings.warn(
            AcclimateWarning(
                "sorted_source",
                f"the {n} source samples for the penalty show only {n_labels} of {n_classes} "
                "classes: the source seems to be sorted by class. Shuffle it.",
                found=n_labels,
                expected=n_classes,
            ),
            stacklevel=4,
        )
