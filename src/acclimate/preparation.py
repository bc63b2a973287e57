"""Prepare a model for adaptation. No other module reads source data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.artifact import Artifact
from acclimate.errors import (
    AcclimateWarning,
    ArtifactMissing,
    BadInput,
    InvalidConfig,
    NotAdapted,
    UnsuitableModel,
    warn,
)
from acclimate.forward import Call, run_eagerly
from acclimate.functional.inputs import check_images
from acclimate.functional.pixels import IGNORE_LABEL
from acclimate.functional.precision import SpeedName, check_speed, precision_used
from acclimate.introspect import (
    ModelInfo,
    check_gradients,
    check_model,
    count_classes,
    inspect_model,
)
from acclimate.methods import METHODS, get_method
from acclimate.methods.gradient import GradientMethod
from acclimate.methods.method import Method, check_dense
from acclimate.parts import (
    Accuracy,
    Confidence,
    Context,
    Contrast,
    Features,
    FisherInformation,
    Mirror,
    Part,
    Penalty,
    Prototypes,
    get_part,
)
from acclimate.parts.contrastive_head import HOW_TO_TRAIN
from acclimate.parts.encoder import Encoder, RowCache
from acclimate.parts.part import get_place, make_generator
from acclimate.parts.source import SourceData, check_reiterable, find_labels, split_batch
from acclimate.progress import Progress, finish_line, get_progress
from acclimate.snapshot import fingerprint
from acclimate.storage import versions
from acclimate.terms import TERMS

#: The parts that are prepared by default.
DEFAULT_PARTS: tuple[type[Part], ...]
DEFAULT_PARTS = (Penalty, Prototypes, Features, Accuracy, Mirror, Confidence)

#: A model is expected to predict more than this share of what chance leaves, of so many images.
ABOVE_CHANCE, FEWEST_JUDGED = 0.4, 32


def prepare(
    model: nn.Module,
    source: Iterable[Any],
    *,
    method: str | Sequence[str] | None = None,
    parts: Sequence[str | Part] | None = None,
    accuracy: bool = True,
    info: ModelInfo | None = None,
    classes: Sequence[str] | None = None,
    ignore_label: int = IGNORE_LABEL,
    seed: int = 0,
    speed: SpeedName = "exact",
    progress: Progress | bool | None = None,
) -> Artifact:
    """Compute on source data everything that a model needs to adapt later without it.

    The model is frozen and in evaluation mode throughout, and is unchanged afterwards. Features of
    source images are cached for the parts and epochs that need them again: up to 512 MB in memory,
    the rest in a temporary file.

    Args:
        model: A trained classifier of images or of pixels, on any device.
        source: Labelled batches `(x, y)` that can be iterated several times, such as a shuffled
            DataLoader; or dicts with the model's inputs and `labels`, as Hugging Face loaders
            yield. Labels are class numbers (N,), or masks of the images' size (N, H, W) for a model
            that predicts every pixel.
        method: Names of methods and terms. What they and the guard need is prepared.
        parts: Parts by name (`"penalty"` for SWR, `"prototypes"` for NSP, `"accuracy"` for the
            guard, `"fisher"` for EATA, `"contrast"` for TFA and TTT++), or with options, such as
            `Penalty(n_samples=64)`. Together with `method`, they are added to the parts that it
            needs, or replace their options. If neither is given, `DEFAULT_PARTS` are prepared. For
            a model that predicts every pixel, these exclude prototypes, which the paper does not
            use there and which need every class.
        accuracy: Whether the part `accuracy` is prepared without being named in `parts`. Only the
            guard needs it, and it takes longer than all other parts together.
        info: Facts about the model that cannot be inferred: its head, where its logits are, how its
            inputs are normalised.
        classes: Class names in the order of the logits, to be stored in the artifact.
        ignore_label: Value of pixels without a label in masks.
        seed: Seed of all random numbers.
        speed: `"exact"`: the model's own precision. `"fast"`: bfloat16 where the device supports
            it, otherwise the same as `"exact"`; the part fisher is always exact. The artifact's
            card states the option and the precision that was used.
        progress: Called with the stage, the count done and the total. By default a bar is shown in
            terminals and notebooks; False turns it off.

    Returns:
        The artifact; `save` it beside the model.
    """
    check_speed(speed)
    if isinstance(model, Method):
        raise NotAdapted(
            "already_adapted", "This model is being adapted. Call unwrap() before prepare()."
        )
    model = check_model(model)
    chosen = choose_parts(method, parts)
    check_reiterable(source)
    info = info or ModelInfo()
    weights = next((p for p in model.parameters()), torch.empty(0))
    needs_gradients = _needs_gradients(method, chosen)
    call, x, y = _first(source, model, info)
    n_expected = count_classes(model, info)
    if n_expected is not None and y.dim() == 1:
        _check_classes(source, chosen, replace(info, n_classes=n_expected))
    _check_precision(x, weights, needs_gradients)
    some = x[:2].to(weights.device)
    info = inspect_model(model, some, info, call)
    if info.is_dense:
        chosen = _choose_pixel_parts(method, parts, chosen)
    if classes is not None and len(classes) != info.n_classes:
        raise BadInput(
            "count_mismatch",
            f"Expected {info.n_classes} class names, one per logit of the model, found "
            f"{len(classes)}. Pass the names in the order of the logits.",
            expected=info.n_classes,
            found=len(classes),
        )
    if not any(get_part(part).name == "accuracy" for part in parts or ()):
        chosen = _leave_out_accuracy(chosen, x, accuracy)
    for part in chosen:
        part.check(model, info)
    if info.n_classes != n_expected:
        _check_classes(source, chosen, info)
    if needs_gradients:
        check_gradients(model, some, info, call)
    bar = get_progress(progress)
    data = SourceData(source, info, weights.device, bar, ignore_label if info.is_dense else None)
    tensors: dict[str, Tensor] = {}
    cards: dict[str, Any] = {}
    reuses = sum(part.n_passes(info) for part in chosen) > 1 and not info.is_dense
    with run_eagerly(model), RowCache() as cache, finish_line(bar):
        encoder = Encoder(model, info, call, speed, cache if reuses else None)
        for part in chosen:
            generator = make_generator(part.name, seed)
            made, card = part.compute(Context(model, info, data, encoder, generator, call, speed))
            tensors |= {key: tensor.detach().cpu() for key, tensor in made.items()}
            is_fast = speed == "fast" and not part.always_exact
            precision = precision_used(weights.dtype, weights.device, is_fast)
            cards[part.name] = {**card, "speed": speed, "precision": precision}
    _check_error(cards.get("features", {}), info.known_classes)
    card = {
        "model": fingerprint(model),
        "info": info.to_dict(),
        "classes": None if classes is None else list(classes),
        "input_shape": list(x.shape[1:]),
        "seed": seed,
        "parts": cards,
        "versions": versions(),
    }
    return Artifact(tensors, card)


def _check_error(features: Mapping[str, Any], n_classes: int) -> None:
    """Warn if the model predicts few of the source images correctly."""
    accuracy, chance = 1 - features.get("error", 0.0), 1 / n_classes
    expected = chance + ABOVE_CHANCE * (1 - chance)
    if features.get("n_samples", 0) < FEWEST_JUDGED or accuracy > expected:
        return
    warn(
        AcclimateWarning(
            "low_accuracy",
            f"The model predicts only {accuracy:.1%} of the source images correctly; guessing "
            f"gives {chance:.1%}. If it is known to be better, the order of the classes or the "
            "normalisation of the inputs is wrong. Number the labels in the order of the logits "
            "(on the command line: --classes FILE), and describe inputs that are not in [0, 1] "
            "by info=ModelInfo(normalization=(mean, std)) (--mean and --std).",
            accuracy=accuracy,
            chance=chance,
        )
    )


def choose_parts(
    method: str | Sequence[str] | None, parts: Sequence[str | Part] | None
) -> list[Part]:
    """Return the parts to prepare, with their options, in the order of preparation."""
    needed: list[type[Part]] = []
    names = _names(method)
    for name in names:
        needs = TERMS[name].needs if name in TERMS and name not in METHODS else None
        needed += get_method(name).needs if needs is None else needs
    if method is None and parts is None:
        needed = list(DEFAULT_PARTS)
    elif method is not None:
        needed += [Features, Accuracy]
    chosen = {part.name: part() for part in needed}
    given = [get_part(part) for part in parts or ()]
    for part in given:
        if [other.name for other in given].count(part.name) > 1:
            raise InvalidConfig(
                "duplicate",
                f'The part "{part.name}" was given more than once. Pass it once.',
                name=part.name,
            )
        chosen[part.name] = part
    contrast = chosen.get("contrast")
    for name in names:
        needs_head = getattr(METHODS.get(name), "needs_contrast_head", False)
        if needs_head and not (isinstance(contrast, Contrast) and contrast.head is not None):
            raise ArtifactMissing(
                "projection_head_needed",
                f'The method "{name}" needs the projection head that was trained jointly with the '
                f"model. Pass parts=[Contrast(head=FILE)]. {HOW_TO_TRAIN}",
            )
    return sorted(chosen.values(), key=get_place)


def _names(method: str | Sequence[str] | None) -> list[str]:
    return [method] if isinstance(method, str) else list(method or ())


def _choose_pixel_parts(
    method: str | Sequence[str] | None, given: Sequence[str | Part] | None, parts: list[Part]
) -> list[Part]:
    """Return the parts for a model that predicts every pixel; refuse unsupported ones."""
    for name in _names(method):
        if name in METHODS:
            check_dense(get_method(name))
    if method is None and given is None:
        return [part for part in parts if part.name != "prototypes"]
    if unfit := [part.name for part in parts if not part.dense]:
        raise UnsuitableModel(
            "dense_unsupported",
            f"Expected parts that support models that predict every pixel, found "
            f"{' and '.join(unfit)}, which only methods for whole images use. Remove them from "
            "parts.",
            what=", ".join(unfit),
        )
    return parts


def _leave_out_accuracy(parts: list[Part], x: Tensor, is_wanted: bool) -> list[Part]:
    """Return the parts without accuracy if it is not wanted or, with a warning, impossible."""
    rest = [part for part in parts if not isinstance(part, Accuracy)]
    obstacle = Accuracy.find_obstacle(x) if is_wanted and len(rest) < len(parts) else ""
    if not obstacle:
        return parts if is_wanted else rest
    warnings.warn(
        AcclimateWarning(
            "accuracy_left_out",
            f"The part accuracy was left out: {obstacle}. Without it, adapt() cannot use a guard.",
        ),
        stacklevel=3,
    )
    return rest


def _needs_gradients(method: str | Sequence[str] | None, parts: Sequence[Part]) -> bool:
    """Return whether one of the parts or methods computes gradients of the model."""
    kinds = [METHODS[name] for name in _names(method) if name in METHODS]
    return any(isinstance(part, Penalty | FisherInformation) for part in parts) or any(
        issubclass(kind, GradientMethod) for kind in kinds
    )


def _first(source: Iterable[Any], model: nn.Module, info: ModelInfo) -> tuple[Call, Tensor, Tensor]:
    for batch in source:
        call, y = split_batch(batch, info.images_at)
        check_images(call.images, info.normalization)
        return call.fit(model), call.images, y
    raise BadInput(
        "empty_source", "The source has no batch. Pass labelled source data: batches (x, y)."
    )


def _check_precision(x: Tensor, weights: Tensor, needs_gradients: bool) -> None:
    """Refuse images whose precision differs from the model's, before the model fails on them."""
    if weights.dtype == torch.float16 and needs_gradients:
        raise BadInput(
            "wrong_dtype",
            "Expected a model of float32 or bfloat16, as methods that learn by gradients need, "
            "found one of float16, in which small updates are lost. Prepare and adapt "
            "model.bfloat16() or model.float().",
            found="float16",
        )
    if x.dtype == weights.dtype or torch.is_autocast_enabled(weights.device.type):
        return
    raise BadInput(
        "wrong_dtype",
        f"Expected source images of {weights.dtype}, as the weights of the model are, found "
        f"{x.dtype}. Convert the model, for example with model.float(), or the images.",
        found=str(x.dtype).removeprefix("torch."),
    )


def _check_classes(source: Iterable[Any], parts: Sequence[Part], info: ModelInfo) -> None:
    """Refuse a source that does not contain every class, if every class needs a prototype.

    Only labels that are available without reading images are checked.
    """
    wanted = [part for part in parts if isinstance(part, Prototypes)]
    if info.is_dense or not wanted or wanted[0].source != "embedding":
        return
    labels, most = find_labels(source, info.images_at)
    n_classes = info.known_classes
    expected = set(range(n_classes))
    if labels is not None and not (labels and labels <= expected):
        return  # a source without labels or with wrong ones is refused when it is read
    missing = () if labels is None else tuple(sorted(expected - labels))
    if not missing and (most is None or most >= n_classes):
        return
    found = f"{n_classes - len(missing)} classes" if missing else f"{most} images"
    raise BadInput(
        "missing_classes",
        f"Expected source images of all {n_classes} classes for the part prototypes, found "
        f"{found}. Pass more source data, or take prototypes from the classifier's weights: "
        'parts=[Prototypes(source="classifier"), ...]. For methods without NSP, prepare without '
        'prototypes: parts=["penalty", "features"].',
        missing=missing,
    )
