"""Inspect a model and a batch, and report what adapting would use, change and fail on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from acclimate.artifact import Artifact
from acclimate.errors import ArtifactMismatch, BadInput, UnsuitableModel, check_at_least
from acclimate.functional.inputs import Normalization, check_batch, check_images
from acclimate.functional.norm import NORM_LAYERS, batch_norm_layers
from acclimate.introspect import ModelInfo, check_model, inspect_model, takes
from acclimate.methods import METHODS
from acclimate.methods.gradient import GradientMethod
from acclimate.methods.method import SMALL_BATCH, Method

Level = Literal["ok", "note", "problem"]

_REMEDY = (
    f"Use batches of {SMALL_BATCH} or more; or adapt with guard=True, which answers with the "
    'source model where adaptation hurts; or with statistics="mixed" or "source" (on the command '
    "line: --guard, --set statistics=mixed)."
)

# Layers that drop whole branches at random. They are defined in other libraries: matched by name.
_STOCHASTIC_DEPTH = ("StochasticDepth", "DropPath")


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        level: `"ok"`, `"note"` (worth knowing) or `"problem"` (adapting fails or misleads).
        topic: What was checked.
        text: What was found.
        remedy: What to do about it; empty if nothing.
    """

    level: Level
    topic: str
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All findings, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are problems."""
        return tuple(finding for finding in self.findings if finding.level == "problem")


def diagnose(
    model: nn.Module,
    x: Tensor,
    artifact: Artifact | None = None,
    info: ModelInfo | None = None,
    batch_size: int | None = None,
) -> Diagnosis:
    """Report what adapting this model on batches like this one would use, change and fail on.

    Neither the model nor the batch is changed.

    Args:
        model: The source model.
        x: A batch like those of the stream.
        artifact: The artifact that was prepared for the model, if there is one.
        info: Facts about the model that cannot be inferred; from the artifact by default.
        batch_size: Number of images in the batches of the stream; as many as in `x` by default.
    """
    model = check_model(model)
    if batch_size is not None:
        check_at_least("batch_size", batch_size, 1)
    info = info or ModelInfo()
    if artifact is not None:
        known = artifact.info
        info = replace(
            info,
            head=info.head or known.head,
            logits_at=known.logits_at if info.logits_at is None else info.logits_at,
            normalization=info.normalization or known.normalization,
        )
    normal = info.normalization
    found, on_head = _head(model, x, info)
    is_dense = found is not None and found.is_dense
    findings = [
        *_normalisation_layers(model),
        *_random_layers(model),
        *_parameters(model),
        *_input(x, normal),
        *_batch_size(model, x, is_dense, batch_size),
        *on_head,
        *_artifact(model, x, artifact, normal, is_dense),
        _guard(artifact),
        *_methods(model, artifact, is_dense),
    ]
    return Diagnosis(tuple(findings))


def _normalisation_layers(model: nn.Module) -> Iterator[Finding]:
    topic = "normalisation layers"
    kinds = Counter(type(m).__name__ for m in model.modules() if isinstance(m, NORM_LAYERS))
    if not kinds:
        yield Finding("note", topic, "none", "Use a method that trains other layers: swr_nsp.")
        return
    yield Finding("ok", topic, ", ".join(f"{n} {kind}" for kind, n in kinds.items()))
    layers = batch_norm_layers(model)
    without = [name for name, layer in layers.items() if layer.running_mean is None]
    if without:
        yield Finding(
            "note",
            topic,
            f"{len(without)} of {len(layers)} BatchNorm layers have no running statistics, such as "
            f"{without[0]}: they use those of the batch even without adapting.",
            'Do not use statistics="running" or "source" with this model.',
        )
    kept = [layer for layer in layers.values() if layer.running_mean is not None]
    if kept and all(_is_fresh(layer) for layer in kept):
        yield Finding(
            "problem",
            topic,
            "all running statistics are 0 and 1, as in a new model: it looks untrained.",
            "Load the trained weights first (--weights).",
        )


def _is_fresh(layer: nn.Module) -> bool:
    mean, variance = layer.running_mean, layer.running_var
    return not bool(mean.any()) and bool((variance == 1).all())  # type: ignore[operator,union-attr]


def _random_layers(model: nn.Module) -> Iterator[Finding]:
    kinds = Counter(
        type(m).__name__
        for m in model.modules()
        if isinstance(m, _DropoutNd) or type(m).__name__ in _STOCHASTIC_DEPTH
    )
    found = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    yield Finding("ok", "dropout", f"{found}: off while adapting" if found else "none")


def _parameters(model: nn.Module) -> Iterator[Finding]:
    parameters = list(model.parameters())
    free = [p for p in parameters if p.requires_grad]
    n_frozen = len(parameters) - len(free)
    n = sum(p.numel() for p in free)
    text = f"{len(free)} tensors, {n:,} parameters" + (f"; {n_frozen} frozen" if n_frozen else "")
    if not free:
        remedy = "Unfreeze the parameters to train: model.requires_grad_(True)."
        yield Finding("problem", "trainable", text, remedy)
    elif n_frozen:
        remedy = "Frozen tensors are not adapted. Unfreeze them if that is not intended."
        yield Finding("note", "trainable", text, remedy)
    else:
        yield Finding("ok", "trainable", text)


def _input(x: Tensor, normalization: Normalization | None) -> Iterator[Finding]:
    try:
        check_batch(x)
    except BadInput as error:
        yield Finding("problem", "input", str(error))
        return
    low, high = float(x.min()), float(x.max())
    text = f"{tuple(x.shape[1:])}, values from {low:.3g} to {high:.3g}"
    try:
        check_images(x, normalization)
    except BadInput as error:
        yield Finding("problem" if x.dim() == 4 else "note", "input", text, str(error))
        return
    if normalization is not None:
        yield Finding("ok", "input", f"{text}: images in [0, 1], normalised as stated")
    elif high <= 8 / 255:
        remedy = "They may have been divided by 255 twice. Pass images in [0, 1]."
        yield Finding("note", "input", f"{text}: nearly black images", remedy)
    else:
        yield Finding(
            "ok",
            "input",
            f"{text}: images in [0, 1]; the model must normalise them itself, or not need it",
        )


def _batch_size(
    model: nn.Module, x: Tensor, is_dense: bool, batch_size: int | None
) -> Iterator[Finding]:
    if x.dim() == 0 or not batch_norm_layers(model):
        return
    n = len(x) if batch_size is None else batch_size
    if is_dense and n == 1 and not takes(model, x[:1].to(next(model.parameters(), x)), "batch"):
        yield Finding(
            "problem",
            "batch size",
            "1: the model pools an image into one value per channel and normalises it, and a "
            "single value has no statistics.",
            'Pass at least two images, or adapt with statistics="running" or "source".',
        )
    elif is_dense and n:
        yield Finding("ok", "batch size", f"{n}: statistics are computed over all pixels")
    elif n <= 1:
        yield Finding(
            "problem",
            "batch size",
            f"{n}: BatchNorm statistics of a single image are meaningless.",
            f"{_REMEDY} With a guard, single images are predicted with the source statistics and "
            "not learned from.",
        )
    elif n < SMALL_BATCH:
        yield Finding(
            "problem",
            "batch size",
            f"Batches of {n} are too small for BatchNorm statistics: these are noisy with fewer "
            f"than {SMALL_BATCH} images, and adapted predictions may be much worse than the source "
            "model's.",
            _REMEDY,
        )
    else:
        yield Finding("ok", "batch size", str(n))


def _head(
    model: nn.Module, x: Tensor, info: ModelInfo
) -> tuple[ModelInfo | None, tuple[Finding, ...]]:
    if x.dim() == 0 or len(x) == 0:
        return None, ()
    parameter = next(iter(model.parameters()), x)
    try:
        # The values do not matter here, and NaN would be reported twice.
        found = inspect_model(model, torch.zeros_like(x[:2]).to(parameter), info)
    except (UnsuitableModel, BadInput) as error:
        return None, (Finding("problem", "head", str(error)),)
    text = f'"{found.head}": {found.n_features} features, {found.n_classes} classes'
    if found.is_dense:
        text += " per pixel"
    return found, (Finding("ok", "head", text),)


def _artifact(
    model: nn.Module,
    x: Tensor,
    artifact: Artifact | None,
    normalization: Normalization | None,
    is_dense: bool,
) -> Iterator[Finding]:
    if artifact is None:
        remedy = "Prepare one where the source data is available: acclimate prepare."
        yield Finding("note", "artifact", "none given", remedy)
        return
    try:
        artifact.check(model)
    except ArtifactMismatch as error:
        yield Finding("problem", "artifact", str(error))
        return
    expected = (artifact.normalization, tuple(artifact.card["input_shape"]))
    found = (normalization, tuple(x.shape[1:]))
    for what, then, now in zip(("normalisation", "input shape"), expected, found, strict=True):
        # A model that predicts every pixel accepts images of any size.
        if then != now and not (is_dense and what == "input shape"):
            text = f"prepared with {what} {then}, but the inputs have {now}."
            remedy = "Use the settings of the preparation, or prepare again."
            yield Finding("problem", "artifact", text, remedy)
            return
    yield Finding("ok", "artifact", f"belongs to this model; parts: {', '.join(artifact.parts)}")


def _guard(artifact: Artifact | None) -> Finding:
    if artifact is not None and "accuracy" in artifact.parts:
        return Finding("ok", "guard", "available: the artifact has the part accuracy")
    why = "no artifact given" if artifact is None else "the artifact has no part accuracy"
    return Finding(
        "note",
        "guard",
        f"not available, {why}: accuracy cannot be estimated, and adaptation that hurts cannot be "
        "recognised",
        "Prepare an artifact with the part accuracy, which acclimate prepare makes by default.",
    )


def _methods(model: nn.Module, artifact: Artifact | None, is_dense: bool) -> Iterator[Finding]:
    for name, kind in METHODS.items():
        if kind.card.is_oracle:  # oracles cannot be deployed
            continue
        if is_dense and not kind.card.dense:
            yield Finding("note", f"method {name}", "supports predictions of whole images only")
        else:
            yield _method(name, kind, model, artifact)


def _method(name: str, kind: type[Method], model: nn.Module, artifact: Artifact | None) -> Finding:
    topic = f"method {name}"
    config = kind.config_class()
    problems = kind.check(model, config)
    if problems:
        # A method that cannot be used is not a problem of the model.
        remedy = " ".join(problem.remedy for problem in problems)
        return Finding("note", topic, "; ".join(problem.what for problem in problems), remedy)
    if issubclass(kind, GradientMethod):
        moved = kind.trainable(model, config).values()
        text = f"moves {len(moved)} tensors, {sum(p.numel() for p in moved):,} parameters"
    else:
        text = f"moves {kind.card.moves}"
    parts = () if artifact is None else tuple(artifact.parts)
    missing = [part for part in kind.needed_parts() if part not in parts]
    if missing:
        many = "s" * (len(missing) > 1)
        remedy = (
            f"It needs an artifact with the part{many} {', '.join(missing)}: acclimate prepare."
        )
        return Finding("note", topic, text, remedy)
    return Finding("ok", topic, text)
