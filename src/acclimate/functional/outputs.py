"""Where the logits are in what a model returns: found, and replaced by others."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from acclimate.errors import UnsuitableModel

#: Where the logits are in what the model returns: a key, a position, an attribute or a function.
LogitsAt = str | int | Callable[[Any], Tensor] | None


def get_logits(output: Any, at: LogitsAt = None) -> Tensor:
    """Return the logits in a model's output: (B, K), or (B, K, h, w) of one that predicts pixels.

    A tensor is the logits itself; a mapping or an object is asked for `logits`. Anything else
    needs `at`.

    Raises:
        UnsuitableModel: The logits cannot be told, or are of another shape.
    """
    found: Any = None
    if callable(at):
        found = at(output)
    elif (
        isinstance(at, int)
        and isinstance(output, tuple | list)
        and -len(output) <= at < len(output)
    ):
        found = output[at]
    elif isinstance(at, str):
        found = output.get(at) if isinstance(output, Mapping) else getattr(output, at, None)
    elif at is None and isinstance(output, Tensor):
        found = output
    elif at is None:
        found = output.get("logits") if isinstance(output, Mapping) else None
        found = getattr(output, "logits", None) if found is None else found
    if not isinstance(found, Tensor):
        raise UnsuitableModel(
            "no_logits",
            f"expected the model to return logits, or something with logits in it; "
            f"{_describe(output)}{'' if at is None else f', and nothing at {at!r}'}. "
            "Say where they are: logits_at=<key, position, attribute name, or a function>.",
        )
    if found.dim() not in (2, 4):
        raise UnsuitableModel(
            "wrong_logits",
            "expected logits of shape (batch, classes), or (batch, classes, height, width) of a "
            f"model that predicts every pixel, found {tuple(found.shape)}. Only classifiers of "
            "images or pixels are adapted; pass logits_at=<function> to reshape or select.",
            found=tuple(found.shape),
        )
    return found


def replace_logits(output: Any, logits: Tensor, at: LogitsAt = None) -> Any:
    """Return a model's output, detached, with other logits in the place of its own.

    With a function as `at` the place cannot be written to: the logits themselves are returned.
    """
    if isinstance(output, Tensor) or callable(at):
        return logits
    if isinstance(output, tuple | list):
        items = [_detach(item) for item in output]
        items[at if isinstance(at, int) else 0] = logits
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    key = at if isinstance(at, str) else "logits"
    result = copy.copy(output)
    if isinstance(result, dict):
        for name, value in list(result.items()):
            result[name] = _detach(value)
        result[key] = logits
    elif isinstance(result, Mapping):
        return {**{name: _detach(value) for name, value in output.items()}, key: logits}
    else:
        for name in _attributes(output):
            object.__setattr__(result, name, _detach(getattr(output, name)))
        object.__setattr__(result, key, logits)
    return result


def place_of(made: Any, output: Any) -> LogitsAt:
    """Return the key or position at which the output holds what the head made, if it is plain."""
    if isinstance(output, Mapping):
        items: list[tuple[Any, Any]] = list(output.items())
    elif isinstance(output, tuple | list):
        items = list(enumerate(output))
    else:
        items = list(getattr(output, "__dict__", {}).items())
    places = [place for place, value in items if value is made]
    return places[0] if len(places) == 1 and places[0] != "logits" else None


def list_tensors(output: Any) -> list[Tensor]:
    """Return the tensors in a model's output, inside any nesting of containers."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [tensor for value in output.values() for tensor in list_tensors(value)]
    if isinstance(output, tuple | list):
        return [tensor for value in output for tensor in list_tensors(value)]
    return [
        value for value in getattr(output, "__dict__", {}).values() if isinstance(value, Tensor)
    ]


def _detach(value: Any) -> Any:
    """Return a value whose tensors, also in nested containers, carry no graph."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(_detach(item) for item in value)
    if type(value) is dict:
        return {key: _detach(item) for key, item in value.items()}
    return value


def _attributes(output: Any) -> list[str]:
    """Return the names of an object's own attributes, in slots or in its dictionary."""
    slots = [name for kind in type(output).__mro__ for name in getattr(kind, "__slots__", ())]
    own = [name for name in slots if hasattr(output, name) and not name.startswith("__")]
    return [*own, *getattr(output, "__dict__", {})]


def _describe(output: Any) -> str:
    if isinstance(output, Mapping):
        return f"it returns a mapping with the keys {sorted(map(str, output))}"
    if isinstance(output, tuple | list):
        return f"it returns a {type(output).__name__} of {len(output)}"
    return f"it returns a {type(output).__name__}"
