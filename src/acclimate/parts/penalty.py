"""The penalty vector of SWR, from source data."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.errors import AcclimateWarning
from acclimate.functional.gradients import gradient_cosines
from acclimate.functional.norm import use_statistics
from acclimate.functional.penalty import penalties
from acclimate.functional.views import apply_views, get_views
from acclimate.parts.options import PenaltyOptions, to_card
from acclimate.parts.source import Source, iterate_blocks
from acclimate.taps import Anatomy, get_logits

_BLOCK = 128  # samples taken together: random draws do not depend on the loader's batch size


def prepare_penalty(
    model: nn.Module,
    anatomy: Anatomy,
    source: Source,
    options: PenaltyOptions,
    generator: torch.Generator,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return penalties and mean cosines by parameter name, and the part's card.

    The model is frozen, in evaluation mode. Samples are the source's first `n_samples`, in its
    order: give a shuffled loader.
    """
    views = get_views(options.views)
    totals: dict[str, Tensor] = {}
    seen: dict[str, Tensor] = {}
    labels: set[int] = set()
    n = 0

    def forward(x: Tensor) -> Tensor:
        return get_logits(model(x), anatomy.logits_at)

    with use_statistics(model, "source"):
        for x, y in iterate_blocks(source, "penalty", options.n_samples, _BLOCK):
            view = apply_views(views, x, source.normalization, generator)
            sums = gradient_cosines(forward, model, x, view, y, options.granularity)
            for name, part in sums.items():
                totals[name] = part.total if name not in totals else totals[name] + part.total
                seen[name] = part.seen if name not in seen else seen[name] | part.seen
            labels |= set(y.tolist())
            n += len(x)
            if source.progress is not None:
                source.progress("penalty", n, options.n_samples)
    _warn(n, options.n_samples, len(labels), source.n_classes)
    cosines = {name: (total / n).where(seen[name], torch.nan) for name, total in totals.items()}
    tensors = {f"cosine/{name}": value for name, value in cosines.items()}
    weights = penalties(cosines, options.exponent)
    tensors |= {f"penalty/{name}": value for name, value in weights.items()}
    return tensors, {**to_card(options), "n_samples": n, "n_units": _n_units(weights, options)}


def _n_units(weights: dict[str, Tensor], options: PenaltyOptions) -> int:
    if options.granularity == "module":
        return len({name.rpartition(".")[0] for name in weights})
    return sum(value.numel() for value in weights.values())


def _warn(n: int, wanted: int, n_labels: int, n_classes: int) -> None:
    if n < wanted:
        warnings.warn(
            f"the penalty was to be measured on {wanted} source samples, but the source has only "
            f"{n}: all were used. The paper finds it stable from 256 on.",
            AcclimateWarning,
            stacklevel=4,
        )
    if n_labels < min(n_classes, n) / 2:
        warnings.warn(
            f"the {n} source samples for the penalty show only {n_labels} of {n_classes} classes: "
            "the source seems to be sorted by class. Shuffle it.",
            AcclimateWarning,
            stacklevel=4,
        )
