"""Methods and their options as they are written on one line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from acclimate.artifact import Artifact
from acclimate.errors import BadInput, InvalidConfig, did_you_mean
from acclimate.methods import get_method, list_methods
from acclimate.methods.config import Config
from acclimate.parts.contrastive_head import HOW_TO_TRAIN

ALL = "all"


def choose_methods(names: Sequence[str], reveal_labels: bool = False) -> tuple[str, ...]:
    """Return the methods of these names; `all` stands for every one.

    Args:
        names: In the order of the table.
        reveal_labels: Whether oracles, which learn from labels, may be among them.

    Raises:
        UnknownMethod: One of them does not exist.
        BadInput: There are none, one comes twice, or one is an oracle and labels are not revealed.

    >>> choose_methods(["source", "tent"])
    ('source', 'tent')
    """
    if list(names) == [ALL]:
        known = list_methods()
        return tuple(name for name in known if reveal_labels or not get_method(name).card.is_oracle)
    oracles = [name for name in names if get_method(name).card.is_oracle]
    if oracles and not reveal_labels:
        raise BadInput(
            "oracle_method",
            f"{', '.join(oracles)} learns from the test labels, which makes it an upper bound and "
            "not a method to deploy. To run it anyway, pass --reveal-labels.",
            methods=tuple(oracles),
        )
    message = (
        f"Expected one or more methods, each listed once, found: {', '.join(names) or 'none'}."
    )
    if not names:
        raise BadInput("missing_option", message, option="methods")
    for place, name in enumerate(names):
        if name in names[:place]:
            raise BadInput("duplicate", message, name=name)
    return tuple(names)


def find_unsuitable(
    model: nn.Module,
    configs: Mapping[str, Config],
    artifact: Artifact | None = None,
    has_head: bool = False,
    predicts_pixels: bool = False,
) -> dict[str, str]:
    """Return the methods that cannot adapt the model, each with the reason.

    Args:
        model: A trained classifier.
        configs: The options of each method.
        artifact: What is known of the source; None if it is prepared on the way, which gives all
            parts.
        has_head: Whether the projection head of a jointly trained model is there for that.
        predicts_pixels: Whether the model predicts every pixel.
    """
    found = {}
    for name, config in configs.items():
        if predicts_pixels and not get_method(name).card.dense:
            found[name] = "it supports only predictions of whole images, and this model predicts "
            found[name] += "every pixel"
            continue
        reasons = [str(problem) for problem in get_method(name).check(model, config)]
        reasons += _find_lack(name, artifact, has_head)
        if reasons:
            found[name] = "; ".join(reasons)
    return found


def _find_lack(name: str, artifact: Artifact | None, has_head: bool) -> list[str]:
    """Return what the artifact has not got, or would not get, if the method needs it."""
    kind = get_method(name)
    missing = (
        []
        if artifact is None
        else [part for part in kind.needed_parts() if part not in artifact.parts]
    )
    if missing:
        return [
            f"it needs {', '.join(missing)}, which the artifact does not contain. Prepare one "
            f"with access to the source data: acclimate prepare SOURCE_DIR --method {name} …"
        ]
    if artifact is not None and "contrast" in artifact.parts:
        has_head = artifact.parts["contrast"]["head"] is not None
    if getattr(kind, "needs_contrast_head", False) and not has_head:
        return [f"it needs an artifact with a projection head. {HOW_TO_TRAIN}"]
    return []


def make_configs(
    names: Sequence[str], values: Mapping[str, Any], preset: str | None = None
) -> dict[str, Config]:
    """Return the options of each method.

    Args:
        names: Of methods.
        values: By name of a hyper-parameter, for all methods that have it; or by
            `method.hyper_parameter`, for that method, which wins.
        preset: Take the values published for a benchmark instead of the defaults.

    Raises:
        InvalidConfig: No method has a hyper-parameter of that name, or the value is not legal.

    >>> configs = make_configs(["source", "tent"], {"lr": 1e-4, "tent.beta1": 0.8})
    >>> configs["tent"].lr, configs["tent"].beta1
    (0.0001, 0.8)
    """
    fields = {
        name: [spec.name for spec in dataclasses.fields(get_method(name).config_class)]
        for name in names
    }
    for key in values:
        method, dot, option = key.rpartition(".")
        if dot and method not in fields:
            raise InvalidConfig(
                "unknown_name",
                f'{key}: the method "{method}" is not part of the comparison. '
                f"{did_you_mean(method, names)}",
                kind="method",
                name=method,
                known=tuple(names),
            )
        known = fields[method] if dot else sorted({n for own in fields.values() for n in own})
        if option not in known:
            raise InvalidConfig(
                "unknown_option",
                f'Unknown hyper-parameter "{key}". {did_you_mean(option, known)}',
                option=key,
                known=tuple(known),
            )
    configs: dict[str, Config] = {}
    for name, known in fields.items():
        own = {key: value for key, value in values.items() if key in known}
        own |= {
            key.removeprefix(f"{name}."): value
            for key, value in values.items()
            if key.startswith(f"{name}.")
        }
        kind = get_method(name).config_class
        configs[name] = kind.from_dict(own) if preset is None else kind.from_preset(preset, own)
    return configs
