"""Wrap a model so that it adapts while it predicts."""

from __future__ import annotations

from typing import Any

from torch import nn

from acclimate.artifact import Artifact
from acclimate.errors import ArtifactMissing, InvalidConfig, NotAdapted, UnsuitableModel
from acclimate.functional.inputs import Normalization
from acclimate.methods import get_method
from acclimate.methods.base import Method
from acclimate.methods.composition import Composition, NspOptions, SwrOptions
from acclimate.methods.config import Config
from acclimate.methods.dense import check_dense, is_dense
from acclimate.methods.gradient import GradientMethod
from acclimate.methods.guard import Guard
from acclimate.methods.speed import Speed
from acclimate.taps import LogitsAt, get_head, looks_dense


def adapt(
    model: nn.Module,
    method: str = "swr_nsp",
    artifact: Artifact | None = None,
    *,
    config: Config | None = None,
    preset: str | None = None,
    regularizer: str | SwrOptions | None = None,
    auxiliary: str | NspOptions | None = None,
    head: str | None = None,
    logits_at: LogitsAt = None,
    normalization: Any = None,
    seed: int = 0,
    guard: bool | Guard = False,
    speed: str | Speed = "exact",
    **hyperparameters: Any,
) -> Method:
    """Return the model as one that learns from every batch it predicts.

    The result is an `nn.Module`: calling it predicts as the model does, then learns from the batch.
    The model is borrowed: use it only through the result until `unwrap()` gives it back.

    Args:
        model: A trained classifier, of images or of every pixel.
        method: Name of a method; `acclimate.list_methods()` names them.
        artifact: What `prepare` returned for this very model, if the method needs it.
        config: All hyper-parameters at once; or give single ones by name.
        preset: Take the hyper-parameters published for `"cifar10"`, `"cifar100"`, `"imagenet"` or
            `"cityscapes"` instead of the defaults; single ones by name still win.
        regularizer: `"swr"`, or its options, lays SWR over a gradient method.
        auxiliary: `"nsp"`, or its options, adds nearest source prototypes to one.
        head: Name of the module that makes the logits; from the artifact by default.
        logits_at: Where the logits are in the model's output; from the artifact by default.
        normalization: How the inputs are normalised; from the artifact by default.
        seed: Of all random draws.
        guard: Restore the last good state when predictions collapse; needs an artifact with the
            part `features`.
        speed: `"exact"`, `"fast"` or `"fastest"`, or the options themselves: what may be traded for
            time and memory.
        **hyperparameters: Of the method, by name.

    Raises:
        UnknownMethod, InvalidConfig, UnsuitableModel, ArtifactError: With what to do.
    """
    if isinstance(model, Method):
        raise NotAdapted("already_adapted", "this model is adapted already. Call unwrap() first.")
    kind = get_method(method)
    if config is None and preset is not None:
        config = kind.config_class.from_preset(preset, hyperparameters)
    elif config is None:
        config = kind.config_class.from_dict(hyperparameters)
    elif hyperparameters or preset is not None:
        raise InvalidConfig(
            "conflicting_options",
            "give either config, or a preset and single hyper-parameters, not both.",
            options=("config", *(() if preset is None else ("preset",)), *hyperparameters),
        )
    elif not isinstance(config, kind.config_class):
        raise InvalidConfig(
            "wrong_type",
            f"expected a {kind.config_class.__name__} for {method}, found {type(config).__name__}.",
            option="config",
            found=type(config).__name__,
        )
    if _is_of_pixels(model, kind, artifact, logits_at):
        check_dense(kind)
    problems = kind.check(model, config)
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise UnsuitableModel(
            "method_refused",
            f"{method} cannot adapt this model.{lines}",
            methods=(method,),
            reasons=tuple(problems),
        )
    given = Normalization.of(normalization)
    if artifact is not None:
        artifact.check(model)
        given = _agree(given, artifact.normalization)
    composition = compose(kind, config, regularizer, auxiliary)
    needs = dict.fromkeys((*kind.needs, *composition.needs))
    missing = [part for part in needs if artifact is None or part not in artifact.parts]
    if missing:
        text = (
            f"{method} needs {', '.join(missing)} from an artifact, which "
            f"{'was not given' if artifact is None else 'has not got it'}. Make one where the "
            f"source data is: {_how_to_prepare(method, composition)}."
        )
        if artifact is None:
            raise ArtifactMissing("artifact_needed", text, methods=(method,))
        raise ArtifactMissing("missing_parts", text, parts=tuple(missing))
    if not isinstance(guard, bool | Guard):
        raise InvalidConfig(
            "wrong_type",
            f"expected guard to be True, False or a Guard, found {guard!r}.",
            option="guard",
            found=type(guard).__name__,
        )
    if guard is True:
        if artifact is None or "features" not in artifact.parts:
            raise ArtifactMissing(
                "missing_parts",
                "the guard compares with the source's own predictions: give an artifact with the "
                f'part "features", from {_how_to_prepare(method, composition)}.',
                parts=("features",),
            )
        guard = Guard(artifact)
    if artifact is not None:
        if head is not None and head != artifact.anatomy.head:
            raise InvalidConfig(
                "artifact_conflict",
                f'expected the head the artifact was prepared with, "{artifact.anatomy.head}", '
                f'found "{head}". Leave it out, or prepare again.',
                option="head",
                found=head,
                expected=artifact.anatomy.head,
            )
        head = artifact.anatomy.head
        logits_at = artifact.anatomy.logits_at if logits_at is None else logits_at
    if head is not None:
        get_head(model, head)
    return kind(
        model,
        config,
        artifact=artifact,
        head=head,
        logits_at=logits_at,
        normalization=given,
        seed=seed,
        guard=guard or None,
        composition=composition,
        speed=Speed.of(speed),
    )


def _how_to_prepare(method: str, added: Composition) -> str:
    """Return how to make an artifact for a method and what is laid over it, in both ways."""
    laid = (("swr", added.regularizer), ("nsp", added.auxiliary))
    names = [method, *(name for name, options in laid if options is not None)]
    given = f'"{method}"' if len(names) == 1 else f"{names}".replace("'", '"')
    return (
        f"acclimate.prepare(model, source, method={given}); or on the command line acclimate "
        f"prepare SOURCE_DIR --method {','.join(names)} ... --out FILE.acclimate, and then "
        "--artifact FILE.acclimate"
    )


def _is_of_pixels(
    model: nn.Module, kind: type[Method], artifact: Artifact | None, logits_at: LogitsAt
) -> bool:
    """Say whether the model is known to predict every pixel.

    Without an artifact it is looked at only if the method is not for pixels, and would ask for an
    artifact or a linear head, neither of which would be of use.
    """
    if artifact is not None:
        return artifact.anatomy.is_dense
    if is_dense(kind):
        return False
    has_linear = any(isinstance(part, nn.Linear) for part in model.modules())
    return (bool(kind.needs) or not has_linear) and looks_dense(model, logits_at)


def compose(
    kind: type[Method], config: Config, regularizer: object, auxiliary: object
) -> Composition:
    """Return what is to be laid over the method; refuse what it cannot carry or has already."""
    added = Composition.of(regularizer, auxiliary)
    if added == Composition():
        return added
    if not issubclass(kind, GradientMethod):
        raise InvalidConfig(
            "no_gradient_steps",
            f"{kind.name} keeps no gradient steps, so there is nothing that SWR could damp or NSP "
            "could add to. Leave regularizer and auxiliary out.",
            method=kind.name,
        )
    own = kind.own_terms(config)
    for name, term in (("regularizer", "SWR"), ("auxiliary", "NSP")):
        if getattr(own, name) is not None and getattr(added, name) is not None:
            raise InvalidConfig(
                "duplicate", f"{kind.name} has {term} already. Leave {name} out.", name=name
            )
    return added


def _agree(given: Normalization | None, prepared: Normalization | None) -> Normalization | None:
    if given is not None and given != prepared:
        raise InvalidConfig(
            "artifact_conflict",
            f"expected the normalisation the artifact was prepared with, {prepared}, "
            f"found {given}. Leave it out, or prepare again.",
            option="normalization",
            found=given.to_dict(),
            expected=None if prepared is None else prepared.to_dict(),
        )
    return prepared
