"""Wrap a model so that it adapts while it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from acclimate.artifact import Artifact
from acclimate.errors import ArtifactMissing, InvalidConfig, NotAdapted, UnsuitableModel
from acclimate.guard import Guard
from acclimate.introspect import ModelInfo, check_model, get_head, looks_dense
from acclimate.methods import get_method
from acclimate.methods.compute import Speed
from acclimate.methods.config import Config
from acclimate.methods.gradient import GradientMethod
from acclimate.methods.method import Method, check_dense
from acclimate.terms import Term, get_terms


def adapt(
    model: nn.Module,
    method: str = "steady",
    artifact: Artifact | None = None,
    *,
    config: Config | None = None,
    preset: str | None = None,
    terms: Sequence[str | Term] = (),
    info: ModelInfo | None = None,
    seed: int = 0,
    guard: bool | str | Guard = False,
    speed: str | Speed = "exact",
    **hyperparameters: Any,
) -> Method:
    """Wrap a model so that it learns from every batch it predicts.

    The result is an `nn.Module`: calling it predicts as the model does, then learns from the batch.
    After `eval()` it only predicts. The model is borrowed: use it only through the result until
    `unwrap()` returns it.

    Args:
        model: A trained classifier of images or of pixels.
        method: Name of a method; `acclimate.list_methods()` lists them.
        artifact: The result of `prepare` for the same model, if the method needs one.
        config: All hyper-parameters at once. Alternatively, pass single ones by name.
        preset: Use the hyper-parameters published for `"cifar10"`, `"cifar100"`, `"imagenet"` or
            `"cityscapes"` instead of the defaults; refused if none are published for the method.
            Hyper-parameters passed by name override them.
        terms: Terms added to the loss or to the gradients of a gradient method: names (`"swr"`,
            `"nsp"`, `"fisher"`) or terms with options, such as `Nsp(weight=0.5)`.
        info: Facts about the model that cannot be inferred: its head, where its logits are, how its
            inputs are normalised. Taken from the artifact by default.
        seed: Seed of all random numbers.
        guard: True: run the source model beside the adapted one, estimate the accuracy of both
            without labels, and answer with the source model where adaptation does not help.
            `"watch"`: only estimate and warn. Both need an artifact with the part `accuracy`; see
            `Guard` for options and costs, and `estimate()` and `report()` of the result.
        speed: `"exact"`, `"fast"` or `"fastest"`, or a `Speed` with single options: what may be
            traded for time and memory.
        **hyperparameters: Hyper-parameters of the method, by name.

    Raises:
        UnknownMethod, InvalidConfig, UnsuitableModel, ArtifactError: The message states the remedy.
    """
    if isinstance(model, Method):
        raise NotAdapted(
            "already_adapted", "This model is already being adapted. Call unwrap() first."
        )
    given, model = model, check_model(model)
    kind = get_method(method)
    config = _get_config(kind, config, preset, hyperparameters)
    info = info or ModelInfo()
    if _is_of_pixels(model, kind, artifact, info):
        check_dense(kind)
    problems = kind.check(model, config)
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise UnsuitableModel(
            "method_refused",
            f'The method "{method}" cannot adapt this model.{lines}',
            methods=(method,),
            reasons={method: tuple(map(str, problems))},
        )
    if artifact is not None:
        artifact.check(model)
        info = _agree(info, artifact.info)
    added = check_terms(kind, config, terms)
    _check_parts(kind, added, artifact)
    if info.head is not None:
        get_head(model, info.head)
    return kind(
        model,
        config,
        artifact=artifact,
        info=info,
        seed=seed,
        guard=_get_guard(guard, kind, added, artifact),
        speed=Speed.of(speed),
        terms=added,
        given=given,
    )


def check_terms(
    kind: type[Method], config: Config, terms: Sequence[str | Term]
) -> tuple[Term, ...]:
    """Return the terms to add to a method; refuse those it does not support or already contains."""
    added = get_terms(terms)
    if not added:
        return ()
    if not (kind.takes_terms and issubclass(kind, GradientMethod)):
        raise InvalidConfig(
            "no_gradient_steps",
            f'The method "{kind.name}" takes no gradient steps that a term could be added to. '
            "Remove the argument terms.",
            method=kind.name,
        )
    own = {term.name for term in kind.own_terms(config)}
    for term in added:
        if term.name in own:
            raise InvalidConfig(
                "duplicate",
                f'The method "{kind.name}" already contains the term "{term.name}". Remove it from '
                "terms.",
                name=term.name,
            )
    return added


def _get_config(
    kind: type[Method], config: Config | None, preset: str | None, values: dict[str, Any]
) -> Config:
    if config is None and preset is not None:
        return kind.config_class.from_preset(preset, values)
    if config is None:
        return kind.config_class.from_dict(values)
    if values or preset is not None:
        raise InvalidConfig(
            "conflicting_options",
            "Pass either config, or a preset and single hyper-parameters, not both.",
            options=("config", *(("preset",) if preset is not None else ()), *values),
        )
    if not isinstance(config, kind.config_class):
        raise InvalidConfig(
            "wrong_type",
            f'Expected config to be a {kind.config_class.__name__} for the method "{kind.name}", '
            f"found {type(config).__name__}.",
            option="config",
            found=type(config).__name__,
        )
    return config


def _check_parts(kind: type[Method], added: tuple[Term, ...], artifact: Artifact | None) -> None:
    """Refuse an artifact without the parts that the method and its terms need."""
    needed = dict.fromkeys(
        part.name for needs in (kind.needs, *(term.needs for term in added)) for part in needs
    )
    missing = tuple(name for name in needed if artifact is None or name not in artifact.parts)
    if not missing:
        return
    who = f'The method "{kind.name}"' + (" with its terms" if added else "")
    many = "s" if len(missing) > 1 else ""
    named = ", ".join(f'"{name}"' for name in missing)
    if artifact is None:
        raise ArtifactMissing(
            "artifact_needed",
            f"{who} needs an artifact with the part{many} {named}. Prepare one where the source "
            f"data is available: {_how_to_prepare(kind.name, added)}.",
            methods=(kind.name,),
        )
    raise ArtifactMissing(
        "missing_parts",
        f"{who} needs the artifact part{many} {named}, which this artifact does not contain. "
        f"Prepare again: {_how_to_prepare(kind.name, added)}.",
        parts=missing,
    )


def _get_guard(
    guard: bool | str | Guard,
    kind: type[Method],
    added: tuple[Term, ...],
    artifact: Artifact | None,
) -> Guard | None:
    if guard is False or isinstance(guard, Guard):
        return guard or None
    if guard is not True and guard != "watch":
        raise InvalidConfig(
            "wrong_type",
            f'Expected guard to be True, False, "watch" or a Guard, found {guard!r}.',
            option="guard",
            found=type(guard).__name__,
        )
    if artifact is None or "accuracy" not in artifact.parts:
        raise ArtifactMissing(
            "missing_parts",
            "The guard estimates accuracy by maps that are fitted on source data. Pass an artifact "
            f'with the part "accuracy": {_how_to_prepare(kind.name, added)}.',
            parts=("accuracy",),
        )
    return Guard(artifact, answers=guard is True)


def _how_to_prepare(method: str, added: tuple[Term, ...]) -> str:
    """Return how to prepare an artifact for a method and its terms, in Python and in a shell."""
    names = [method, *(term.name for term in added)]
    listed = f'"{method}"' if len(names) == 1 else f"{names}".replace("'", '"')
    return (
        f"acclimate.prepare(model, source, method={listed}), or on the command line acclimate "
        f"prepare SOURCE_DIR --method {','.join(names)} ... --out FILE.acclimate, followed by "
        "--artifact FILE.acclimate"
    )


def _is_of_pixels(
    model: nn.Module, kind: type[Method], artifact: Artifact | None, info: ModelInfo
) -> bool:
    """Return whether the model is known to predict every pixel.

    Without an artifact, the model is tried only if the method does not support dense predictions
    and would otherwise ask for an artifact or a linear head, which would not help.
    """
    if artifact is not None:
        return artifact.info.is_dense
    if kind.card.dense:
        return False
    has_linear = any(isinstance(part, nn.Linear) for part in model.modules())
    return (bool(kind.needs) or not has_linear) and looks_dense(model, info.logits_at)


def _agree(given: ModelInfo, prepared: ModelInfo) -> ModelInfo:
    """Return the facts stored in the artifact; those that were given must agree with them."""
    for option in ("head", "normalization"):
        found, expected = getattr(given, option), getattr(prepared, option)
        if found is not None and found != expected:
            raise InvalidConfig(
                "artifact_conflict",
                f"Expected info.{option} to be {expected!r}, which the artifact was prepared with, "
                f"found {found!r}. Remove it from info, or prepare again.",
                option=option,
                expected=expected,
                found=found,
            )
    # Functions cannot be stored in a file, so these two may have to be passed again.
    return replace(
        prepared,
        logits_at=prepared.logits_at if given.logits_at is None else given.logits_at,
        images_at=prepared.images_at if given.images_at is None else given.images_at,
    )
