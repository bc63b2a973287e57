"""Of which kind the values of a job must be, so that a slip is told where it was made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from acclimate.errors import InvalidConfig


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list_of(is_kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(map(is_kind, value))


_Kind = tuple[Callable[[Any], bool], str]

_TEXT: _Kind = _is_text, "a string"
_TABLE: _Kind = lambda value: isinstance(value, Mapping), "a table, such as { lr = 1e-3 }"
_COUNT: _Kind = _is_count, "an integer"
_SWITCH: _Kind = lambda value: isinstance(value, bool), "true or false"
_GUARD: _Kind = (
    lambda value: isinstance(value, bool) or value == "watch",
    'true, false or "watch"',
)
_SEED: _Kind = lambda value: _is_count(value) and value >= 0, "an integer of at least 0"

_KINDS: dict[str, _Kind] = {
    "model": _TEXT,
    "weights": _TEXT,
    "data": _TEXT,
    "corruptions": (_is_list_of(_is_text), 'a list, such as ["fog"]'),
    "severities": (_is_list_of(_is_count), "a list of numbers from 1 to 5, such as [5]"),
    "images": _COUNT,
    "size": (
        lambda value: _is_count(value) or _is_text(value),
        'a number of pixels, or height and width, such as "48x64"',
    ),
    "ignore_label": _COUNT,
    "classes": _TEXT,
    "normalization": (
        lambda value: _is_text(value) or isinstance(value, Mapping),
        'a name or a table, such as "imagenet"',
    ),
    "head": _TEXT,
    "logits_at": (
        lambda value: _is_count(value) or _is_text(value),
        "a name, or a position counted from 0",
    ),
    "protocol": _TABLE,
    "method": _TEXT,
    "options": _TABLE,
    "preset": _TEXT,
    "terms": (
        lambda value: isinstance(value, Mapping) and all(map(_TABLE[0], value.values())),
        "a table of tables, such as {swr = {}}",
    ),
    "speed": _TEXT,
    "guard": _GUARD,
    "reveal_labels": _SWITCH,
    "prepare": (lambda value: not isinstance(value, str | int | float | list), "a table"),
    "seed": _SEED,
    "source": _TEXT,
    "parts": (lambda value: isinstance(value, Mapping), "a table of tables"),
    "contrast_head": _TEXT,
}


def check_kinds(values: Mapping[str, Any], where: str = "") -> None:
    """Refuse values of another kind than their names ask for; None is none.

    Args:
        values: By name; names that are not known here are not looked at.
        where: What names begin with in messages.

    Raises:
        InvalidConfig: With what was expected and what was found.

    >>> check_kinds({"corruptions": ["fog"], "seed": 3, "images": None})
    >>> check_kinds({"corruptions": "fog"})
    Traceback (most recent call last):
    acclimate.errors.InvalidConfig: Expected a list, such as ["fog"], for corruptions, found 'fog'.
    """
    for name, value in values.items():
        is_kind, expected = _KINDS.get(name, (None, ""))
        if is_kind is not None and value is not None and not is_kind(value):
            comma = "," if " such as " in expected else ""
            message = f"Expected {expected}{comma} for {where}{name}, found {value!r}."
            option = f"{where}{name}"
            if name == "seed" and _is_count(value):
                raise InvalidConfig("out_of_range", message, option=option, found=value)
            raise InvalidConfig("wrong_type", message, option=option, found=value)
