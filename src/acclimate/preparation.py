"""Prepare a model for adaptation: the one place where source data is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.artifact import Artifact, versions
from acclimate.errors import (
    ArtifactMissing,
    BadInput,
    InvalidConfig,
    UnsuitableModel,
    did_you_mean,
)
from acclimate.functional.inputs import Normalization, check_images
from acclimate.functional.pixels import IGNORE_LABEL
from acclimate.functional.precision import SpeedName, check_speed, precision_used
from acclimate.methods import get_method
from acclimate.methods.dense import check_dense
from acclimate.parts.cache import RowCache
from acclimate.parts.contrast import prepare_contrast
from acclimate.parts.encoder import Encoder
from acclimate.parts.features import prepare_features
from acclimate.parts.fisher import prepare_fisher
from acclimate.parts.options import (
    ContrastOptions,
    FisherOptions,
    PenaltyOptions,
    PrototypeOptions,
)
from acclimate.parts.penalty import prepare_penalty
from acclimate.parts.prototypes import prepare_prototypes
from acclimate.parts.source import Progress, Source, check_reiterable, split_batch
from acclimate.snapshot import fingerprint
from acclimate.taps import Anatomy, LogitsAt, find_anatomy
from acclimate.terms.contrastive_head import HOW_TO_TRAIN, read_head

#: The parts that can be prepared, in the order in which they are.
PARTS = ("penalty", "prototypes", "features", "fisher", "contrast")
#: Those that are unless others are asked for.
DEFAULT_PARTS = ("penalty", "prototypes", "features")


def prepare(
    model: nn.Module,
    source: Iterable[Any],
    *,
    method: str | Sequence[str] | None = None,
    parts: Sequence[str] | None = None,
    normalization: Any = None,
    head: str | None = None,
    logits_at: LogitsAt = None,
    penalty: PenaltyOptions | None = None,
    prototypes: PrototypeOptions | None = None,
    fisher: FisherOptions | None = None,
    contrast: ContrastOptions | None = None,
    contrast_head: nn.Module | str | Path | None = None,
    classes: Sequence[str] | None = None,
    ignore_label: int = IGNORE_LABEL,
    seed: int = 0,
    speed: SpeedName = "exact",
    progress: Progress | None = None,
) -> Artifact:
    """Compute on source data what a model needs to adapt later without it.

    The model is frozen and in evaluation mode throughout, and is given back as it was. What it
    makes of the source's images is kept for the parts and epochs that need it again: up to 512 MB
    in memory, beyond in a temporary file.

    Args:
        model: A trained classifier, of images or of every pixel, on any device.
        source: Labelled batches `(x, y)`, several times iterable, such as a shuffled DataLoader.
            Labels are class numbers (N,), or masks of the images' size (N, H, W) for a model that
            predicts every pixel.
        method: Prepare what these methods need, and what the guard needs.
        parts: Or name the parts: `"penalty"` (SWR), `"prototypes"` (NSP), `"features"` (moments of
            features and predictions; the guard needs them), `"fisher"` (EATA), `"contrast"` (TFA,
            TTT++). Without either: `DEFAULT_PARTS`; for a model that predicts every pixel without
            prototypes, which are not the paper's there and need every class.
        normalization: How the inputs are normalised: None for images in [0, 1] (the model
            normalises inside, or needs none), or `(mean, std)`.
        head: Name of the module that makes the logits, if it cannot be found.
        logits_at: Where the logits are in the model's output, if that cannot be told.
        penalty: Options of the penalty vector; the paper's by default.
        prototypes: Options of prototypes and projector; the paper's by default.
        fisher: Options of the Fisher information; those of EATA's authors by default.
        contrast: Options of the part contrast; those of TTT++'s authors by default.
        contrast_head: The projection head the model was trained with jointly, which TTT++ needs: a
            file of `acclimate train --joint simclr`, or a module (Linear, ReLU, Linear).
        classes: Names of the classes in the order of the logits, to be kept with the artifact.
        ignore_label: What masks hold where there is no label.
        seed: Of all random draws.
        speed: `"exact"`: in the model's own precision. `"fast"`: in bfloat16 where the device has
            it, and the same as `"exact"` where it has not; the part fisher is always exact. The
            artifact's card says what was asked for and what was used.
        progress: Called with the stage, the count done and the count to do.

    Returns:
        The artifact; `save` it beside the model.
    """
    check_speed(speed)
    are_default = method is None and parts is None
    parts = _choose_parts(method, parts)
    if contrast_head is None:
        _check_no_head_needed(method)
    for name in parts:
        if name not in PARTS:
            raise InvalidConfig(
                "unknown_name",
                f'there is no part "{name}". {did_you_mean(name, PARTS)}',
                kind="part",
                name=name,
                known=PARTS,
            )
    if contrast_head is not None and "contrast" not in parts:
        raise InvalidConfig(
            "not_applicable",
            "contrast_head goes into the part contrast, which is not asked for. Say "
            'method="ttt_pp", or add "contrast" to the parts.',
            option="contrast_head",
        )
    penalty = penalty if penalty is not None else PenaltyOptions()
    prototypes = prototypes if prototypes is not None else PrototypeOptions()
    normal = Normalization.of(normalization)
    check_reiterable(source)
    weights = next((p for p in model.parameters()), torch.empty(0))
    device, dtype = weights.device, weights.dtype
    x = _first(source, normal).to(device)
    anatomy = find_anatomy(model, x[:2], head, logits_at)
    if anatomy.is_dense:
        parts = _choose_pixel_parts(method, parts, are_default)
    if classes is not None and len(classes) != anatomy.n_classes:
        raise BadInput(
            "count_mismatch",
            f"expected the names of {anatomy.n_classes} classes, as the model has that many "
            f"logits, found {len(classes)}.",
            expected=anatomy.n_classes,
            found=len(classes),
        )
    projection = (
        None if contrast_head is None else read_head(contrast_head, model, anatomy.n_features)
    )
    ignored = ignore_label if anatomy.is_dense else None
    data = Source(source, anatomy.n_classes, device, normal, progress, ignored)

    reuses = _n_passes(parts, prototypes, anatomy.n_classes) > 1 and not anatomy.is_dense
    tensors: dict[str, Tensor] = {}
    cards: dict[str, Any] = {}
    with RowCache() as cache:
        encoder = Encoder(model, anatomy, speed, cache if reuses else None)
        makers: dict[str, Callable[[torch.Generator], tuple[dict[str, Tensor], dict[str, Any]]]] = {
            "penalty": lambda draws: prepare_penalty(model, anatomy, data, penalty, draws, speed),
            "prototypes": lambda draws: prepare_prototypes(
                model, anatomy, data, prototypes, draws, encoder
            ),
            "features": lambda draws: prepare_features(model, anatomy, data, encoder),
            "fisher": lambda draws: prepare_fisher(model, anatomy, data, fisher or FisherOptions()),
            "contrast": lambda draws: prepare_contrast(
                model, anatomy, data, contrast or ContrastOptions(), projection, draws, encoder
            ),
        }
        for index, name in enumerate(PARTS):
            if name in parts:
                # Each part has its own draws, so that leaving one out does not change another.
                made, found = makers[name](torch.Generator().manual_seed(seed * 1000 + index))
                tensors |= {key: tensor.detach().cpu() for key, tensor in made.items()}
                precision = precision_used(dtype, device, speed == "fast" and name != "fisher")
                cards[name] = {**found, "speed": speed, "precision": precision}
    card = {
        "model": fingerprint(model),
        "anatomy": _anatomy_card(anatomy),
        "classes": None if classes is None else list(classes),
        "input_shape": list(x.shape[1:]),
        "normalization": None if normal is None else normal.to_dict(),
        "seed": seed,
        "parts": cards,
        "versions": versions(),
    }
    return Artifact(tensors, card)


def _choose_parts(
    method: str | Sequence[str] | None, parts: Sequence[str] | None
) -> tuple[str, ...]:
    if method is None:
        return DEFAULT_PARTS if parts is None else tuple(parts)
    if parts is not None:
        raise InvalidConfig(
            "conflicting_options",
            "give either method or parts, not both.",
            options=("method", "parts"),
        )
    names = [method] if isinstance(method, str) else method
    needed = [part for name in names for part in get_method(name).needs]
    return tuple(dict.fromkeys([*needed, "features"]))


def _choose_pixel_parts(
    method: str | Sequence[str] | None, parts: tuple[str, ...], are_default: bool
) -> tuple[str, ...]:
    """Return the parts for a model that predicts every pixel; refuse what is not made for it."""
    for name in [method] if isinstance(method, str) else method or ():
        check_dense(get_method(name))
    if are_default:
        return tuple(part for part in parts if part != "prototypes")
    if unfit := [part for part in ("fisher", "contrast") if part in parts]:
        raise UnsuitableModel(
            "dense_unsupported",
            f"this model predicts every pixel; {' and '.join(unfit)} can be measured for methods "
            "that adapt predictions of whole images only. Leave them out of the parts.",
            what=", ".join(unfit),
        )
    return parts


def _n_passes(parts: Sequence[str], options: PrototypeOptions, n_classes: int) -> int:
    """Return how often the source's images, as they are, are looked at by the model."""
    n_passes = int("features" in parts)
    if "prototypes" in parts and options.source == "embedding":
        n_passes += options.epochs if options.depth_for(n_classes) else 1
    return n_passes


def _check_no_head_needed(method: str | Sequence[str] | None) -> None:
    """Refuse early what `adapt` would refuse after a long preparation."""
    for name in [method] if isinstance(method, str) else method or ():
        if getattr(get_method(name), "needs_contrast_head", False):
            raise ArtifactMissing(
                "projection_head_needed",
                f"{name} needs the projection head that the model was trained with jointly: "
                f"contrast_head=FILE. {HOW_TO_TRAIN}",
            )


def _first(source: Iterable[Any], normalization: Normalization | None) -> Tensor:
    for batch in source:
        x, _ = split_batch(batch)
        check_images(x, normalization)
        return x
    raise BadInput(
        "empty_source", "the source has no batch. Give labelled source data: batches (x, y)."
    )


def _anatomy_card(anatomy: Anatomy) -> dict[str, Any]:
    at = anatomy.logits_at
    return {
        "head": anatomy.head,
        # A function cannot be written to a file: it must be given again at adapt().
        "logits_at": at if isinstance(at, str | int) else None,
        "n_classes": anatomy.n_classes,
        "n_features": anatomy.n_features,
        **({"is_dense": True} if anatomy.is_dense else {}),
    }
