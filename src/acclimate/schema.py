"""What a tree of tensors must look like before it is loaded.

A schema lists every problem of a tree, by the place in it. Nothing is converted, broadcast, added
or left out. Sizes that a schema cannot know are names, such as `"classes"`: all tensors of a tree
must agree on them.

>>> schema = Fields({"mean": TensorOf(("classes",)), "n": Number(int, low=0)})
>>> schema.find_problems({"mean": torch.ones(3), "n": -1})
['n: -1, expected at least 0']
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

#: Largest count: every smaller integer is exact as a float.
LARGEST_COUNT = 2**53

#: Sizes by name, filled while a tree is checked.
Sizes = dict[str, Any]


class Schema:
    """What a part of a tree must look like."""

    def find_problems(self, tree: Any, sizes: Sizes | None = None) -> list[str]:
        """Return what is wrong with a tree; sizes that are found are added to those known."""
        known = {} if sizes is None else sizes
        return [f"{at or 'tree'}: {what}" for at, what in self.check(tree, "", known)]

    def check(self, value: Any, at: str, sizes: Sizes) -> Iterator[tuple[str, str]]:
        """Yield the place and the description of each problem."""
        raise NotImplementedError


@dataclass(frozen=True)
class TensorOf(Schema):
    """A tensor.

    Attributes:
        shape: Sizes, or names of sizes, or None for any size; `...` at the end stands for the shape
            of one input. None for any shape.
        dtype: Its type; None for any floating-point type.
        low: Smallest value.
        high: Largest value.
        finite: Whether infinite values are refused.
        nan: Whether undefined values are accepted.
        below: Name of a size that all values are below, such as class numbers.
    """

    shape: tuple[Any, ...] | None
    dtype: torch.dtype | None = None
    low: float | None = None
    high: float | None = None
    finite: bool = True
    nan: bool = False
    below: str | None = None

    def check(self, value: Any, at: str, sizes: Sizes) -> Iterator[tuple[str, str]]:
        if not isinstance(value, Tensor):
            yield at, f"{_name(value)}, expected a tensor"
            return
        is_right = value.dtype == self.dtype if self.dtype else value.is_floating_point()
        if not is_right:
            yield at, f"{value.dtype}, expected {self.dtype or 'a floating-point type'}"
        elif self.shape is not None and not _fits(tuple(value.shape), self.shape, sizes):
            expected = tuple(sizes.get(size, size) for size in self.shape)
            yield at, f"shape {tuple(value.shape)}, expected {expected}"
        elif not self.nan and bool(value.isnan().any()):
            yield at, "undefined values"
        elif self.finite and bool(value.isinf().any()):
            yield at, "infinite values"
        elif self.low is not None and bool((value < self.low).any()):
            yield at, f"values below {self.low:g}"
        elif self.high is not None and bool((value > self.high).any()):
            yield at, f"values above {self.high:g}"
        elif self.below in sizes and bool((value >= sizes[self.below]).any()):
            yield at, f"values that are not below {sizes[self.below]}"


@dataclass(frozen=True)
class Number(Schema):
    """A finite number, a truth value or a text.

    Attributes:
        kind: int, float, bool or str. An integer is a float too.
        low: Smallest value.
        high: Largest value.
    """

    kind: type[Any]
    low: float | None = None
    high: float | None = LARGEST_COUNT

    def check(self, value: Any, at: str, sizes: Sizes) -> Iterator[tuple[str, str]]:
        if type(value) is not self.kind and not (self.kind is float and type(value) is int):
            yield at, f"{_name(value)}, expected {self.kind.__name__}"
        elif self.kind in (int, float):
            if isinstance(value, float) and not math.isfinite(value):
                yield at, f"{value}, expected a finite number"
            elif self.low is not None and value < self.low:
                yield at, f"{value}, expected at least {self.low:g}"
            elif self.high is not None and value > self.high:
                yield at, f"a number above {self.high:g}"


@dataclass(frozen=True)
class Choice(Schema):
    """One of several texts."""

    choices: tuple[str, ...]

    def check(self, value: Any, at: str, sizes: Sizes) -> Iterator[tuple[str, str]]:
        if not isinstance(value, str) or value not in self.choices:
            yield at, f"expected one of {', '.join(self.choices)}"


@dataclass(frozen=True)
class Fields(Schema):
    """A dictionary with these fields, and no others unless they have a schema.

    Attributes:
        fields: Schemas by name.
        partial: Whether fields may be missing.
        others: Schema of fields with other names; None if they are refused.
    """

    fields: Mapping[str, Schema]
    partial: bool = False
    others: Schema | None = None

    def check(self, value: Any, at: str, sizes: Sizes) -> Iterator[tuple[str, str]]:
        if not isinstance(value, dict):
            yield at, f"{_name(value)}, expected a dictionary"
            return
        for name in [name for name in value if name not in self.fields]:
            if self.others is None:
                yield _inside(at, name), "unexpected"
            else:
                yield from self.others.check(value[name], _inside(at, name), sizes)
        for name, schema in self.fields.items():
            if name in value:
                yield from schema.check(value[name], _inside(at, name), sizes)
            elif not self.partial:
                yield _inside(at, name), "missing"


@dataclass(frozen=True)
class Items(Schema):
    """A dictionary with any texts as keys, or a list."""

    item: Schema
    kind: type[Any] = dict
    longest: int = 100_000

    def check(self, value: Any, at: str, sizes: Sizes) -> Iterator[tuple[str, str]]:
        if type(value) is not self.kind:
            yield at, f"{_name(value)}, expected a {self.kind.__name__}"
        elif len(value) > self.longest:
            yield at, f"{len(value)} items, expected at most {self.longest}"
        else:
            for name, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield from self.item.check(item, _inside(at, name), sizes)


@dataclass(frozen=True)
class Maybe(Schema):
    """None, or what another schema accepts."""

    schema: Schema

    def check(self, value: Any, at: str, sizes: Sizes) -> Iterator[tuple[str, str]]:
        if value is not None:
            yield from self.schema.check(value, at, sizes)


@dataclass(frozen=True)
class Nothing(Schema):
    """None."""

    def check(self, value: Any, at: str, sizes: Sizes) -> Iterator[tuple[str, str]]:
        if value is not None:
            yield at, f"{_name(value)}, expected None"


@dataclass(frozen=True)
class EmptyOr(Schema):
    """An empty dictionary, or what another schema accepts."""

    schema: Schema

    def check(self, value: Any, at: str, sizes: Sizes) -> Iterator[tuple[str, str]]:
        if value != {} or not isinstance(value, dict):
            yield from self.schema.check(value, at, sizes)


@dataclass(frozen=True)
class Where(Schema):
    """What another schema accepts, if a condition holds as well.

    Attributes:
        schema: The schema.
        condition: Called with what the schema accepts.
        text: What is wrong if it returns False.
    """

    schema: Schema
    condition: Callable[[Any], bool] = field(repr=False)
    text: str

    def check(self, value: Any, at: str, sizes: Sizes) -> Iterator[tuple[str, str]]:
        problems = list(self.schema.check(value, at, sizes))
        yield from problems
        if not problems and not self.condition(value):
            yield at, self.text


@dataclass(frozen=True)
class Anything(Schema):
    """Any tree of finite tensors and numbers, for state whose form was not declared."""

    def check(self, value: Any, at: str, sizes: Sizes) -> Iterator[tuple[str, str]]:
        if isinstance(value, Tensor):
            if value.is_floating_point() and not bool(value.isfinite().all()):
                yield at, "infinite or undefined values"
        elif isinstance(value, dict | list):
            for name, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield from self.check(item, _inside(at, name), sizes)
        elif isinstance(value, float):
            yield from Number(float).check(value, at, sizes)


def positive(shape: tuple[Any, ...]) -> Schema:
    """Return the schema of a tensor of positive numbers."""
    return Where(TensorOf(shape), lambda tensor: bool((tensor > 0).all()), "values not above 0")


def like(tree: Any) -> Schema:
    """Return the schema of trees with the same names, shapes and kinds as this one.

    Values must be finite where they are here. None stands for anything, and so does an empty
    container.
    """
    if isinstance(tree, Tensor):
        dtype = None if tree.is_floating_point() else tree.dtype
        finite = bool(tree.isfinite().all())
        return TensorOf(tuple(tree.shape), dtype, finite=finite, nan=bool(tree.isnan().any()))
    if isinstance(tree, dict) and tree:
        return Fields({name: like(item) for name, item in tree.items()})
    if isinstance(tree, bool | int | float | str):
        return Number(type(tree), low=0 if isinstance(tree, int) and tree >= 0 else None)
    return Anything()


def _fits(found: tuple[int, ...], expected: tuple[Any, ...], sizes: Sizes) -> bool:
    if expected and expected[-1] is ...:
        n = len(expected) - 1
        rest = sizes.setdefault("...", found[n:])
        return found[n:] == rest and _fits(found[:n], expected[:-1], sizes)
    if len(found) != len(expected):
        return False
    wanted = (
        sizes.setdefault(e, f) if isinstance(e, str) else e
        for f, e in zip(found, expected, strict=True)
    )
    return all(size is None or size == own for own, size in zip(found, wanted, strict=True))


def _inside(at: str, name: Any) -> str:
    return f"{at}.{name}" if at else str(name)


def _name(value: Any) -> str:
    return "a tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
