"""Options as frozen dataclasses that declare default, range and help of each value.

Hyper-parameters of methods, options of terms and parts, and speed options are declared in this way
and validated here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform, get_args, get_type_hints

from acclimate.errors import InvalidConfig, did_you_mean

#: Benchmarks with published values.
PRESETS = ("cifar10", "cifar100", "imagenet", "cityscapes")

Presets = Mapping[str, Mapping[str, Any]]
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Uniform:
    """A range to search uniformly."""

    low: float
    high: float


@dataclass(frozen=True)
class LogUniform:
    """A range to search uniformly in the logarithm."""

    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """Values to try."""

    values: tuple[Any, ...]


Search = Uniform | LogUniform | Choice


def uniform(low: float, high: float) -> Uniform:
    """Declare a range to search uniformly."""
    return Uniform(low, high)


def log_uniform(low: float, high: float) -> LogUniform:
    """Declare a range to search uniformly in the logarithm."""
    return LogUniform(low, high)


def choice(*values: Any) -> Choice:
    """Declare values to try."""
    return Choice(values)


def hp(
    default: Any = dataclasses.MISSING,
    *,
    help: str,  # noqa: A002
    search: Search | None = None,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    choices: tuple[Any, ...] | None = None,
) -> Any:
    """Declare a hyper-parameter: a dataclass field with its meaning and its allowed values.

    Args:
        default: The published value; without one, the option is required.
        help: What it does, with the paper's symbol if it has one.
        search: Values worth trying when tuning.
        low: Smallest allowed value.
        high: Largest allowed value.
        above: The value must be greater than this.
        below: The value must be less than this.
        choices: Allowed values, if there are few.
    """
    metadata = {"help": help, "search": search, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata={**metadata, "above": above, "below": below})


def changed(options: type[Values], name: str, default: Any) -> Any:
    """Declare an inherited option again with another default; its range and help stay."""
    return field(default=default, metadata=options.__dataclass_fields__[name].metadata)


def published(*at_defaults: str, **values: Mapping[str, Any]) -> Presets:
    """Return presets: the benchmarks whose published values are the defaults, then the others.

    >>> published("cifar10", imagenet={"lr": 0.01})
    {'cifar10': {}, 'imagenet': {'lr': 0.01}}
    """
    return {**{benchmark: {} for benchmark in at_defaults}, **values}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def options(kind: type[Kind]) -> type[Kind]:
    """Make a class of options: a frozen dataclass with keyword-only fields, for `Values`."""
    return dataclass(frozen=True, kw_only=True)(kind)


@cache  # slow, and every job of a suite needs them
def _get_hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@options
class Values:
    """Plain values, each validated against its declaration."""

    #: Values published for a benchmark, by its name; all others keep their defaults. Where the
    #: defaults hold as they are, the mapping is empty. Benchmarks that are not listed are refused.
    presets: ClassVar[Presets] = {}

    def __post_init__(self) -> None:
        problems = {}
        kind: Any = type(self)  # mypy does not take a type for hashable
        hints = _get_hints(kind)
        for spec in dataclasses.fields(self):
            value, hint = getattr(self, spec.name), _without_none(hints[spec.name])
            if value is None and hint is not hints[spec.name]:
                continue
            if hint is float and type(value) is int:
                object.__setattr__(self, spec.name, value := float(value))
            elif hint == tuple[float, float] and isinstance(value, tuple | list):
                value = tuple(float(end) if type(end) is int else end for end in value)
                object.__setattr__(self, spec.name, value)
            problem = _problem(value, hint, spec.metadata)
            if problem:
                problems[spec.name] = f"{spec.name} = {value!r}: expected {problem}"
        if problems:
            lines = "".join(f"\n  {problem}" for problem in problems.values())
            raise InvalidConfig(
                "invalid_options",
                f"Invalid values for {type(self).__name__}:{lines}",
                problems=problems,
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from plain values; refuse unknown names with the nearest known one."""
        known = [spec.name for spec in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise InvalidConfig(
                    "unknown_option",
                    f'{cls.__name__} has no hyper-parameter "{name}". {did_you_mean(name, known)}',
                    option=name,
                    known=tuple(known),
                )
        return cls(**values)

    @classmethod
    def from_preset(cls, preset: str, values: Mapping[str, Any] | None = None) -> Self:
        """Build from the values published for a benchmark, such as `"imagenet"`.

        `values` override them.

        Raises:
            InvalidConfig: No values are known for that benchmark.
        """
        if preset not in cls.presets:
            reason = ": no values are published for that benchmark" if preset in PRESETS else ""
            raise InvalidConfig(
                "unknown_name",
                f'{cls.__name__} has no preset "{preset}"{reason}. '
                f"{did_you_mean(preset, cls.presets)}",
                kind="preset",
                name=preset,
                known=tuple(cls.presets),
            )
        return cls.from_dict({**cls.presets[preset], **(values or {})})

    @classmethod
    def taken_from(cls, other: Values) -> Self:
        """Build from the values of the same names in other options; the rest keeps its defaults."""
        names = [spec.name for spec in dataclasses.fields(cls) if hasattr(other, spec.name)]
        return cls(**{name: getattr(other, name) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """Return the values as plain JSON types."""
        return dataclasses.asdict(self)

    @property
    def id(self) -> str:
        """A short name for exactly these values."""
        text = json.dumps([type(self).__name__, self.to_dict()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class Registry(dict[str, type[Kind]]):
    """Classes with a common base by name: methods, terms or parts.

    Args:
        base: The base class. Messages contain its name.
        members: The first members, in order.
    """

    def __init__(self, base: type[Kind], members: Iterable[type[Kind]] = ()) -> None:
        super().__init__()
        self.base, self.word = base, base.__name__.lower()
        for member in members:
            self.register(member)

    def register(self, member: type[Kind], name: str | None = None) -> type[Kind]:
        """Register a class, so that functions and the command line find it by its name.

        It can be used as a decorator.

        Args:
            member: A class with an attribute `name`.
            name: The name that it must have, if it is stated again.

        Raises:
            InvalidConfig: The name is taken, there is none, or it is another one.
        """
        found = getattr(member, "name", "")
        name = found if name is None else name
        if not name:
            raise InvalidConfig(
                "missing_option",
                f"Expected a {self.word} with a name, but {member.__name__} has none. Set "
                'name = "..." in the class.',
                option="name",
            )
        if self.get(name, member) is not member:
            raise InvalidConfig(
                "name_taken",
                f'A {self.word} with the name "{name}" is already registered. Choose another name.',
                name=name,
            )
        if found != name:
            raise InvalidConfig(
                "name_mismatch",
                f'Expected {member.__name__}.name to be "{name}", found "{found}". Set it so.',
                expected=name,
                found=found,
            )
        self[name] = member
        return member

    def find(self, name: str) -> type[Kind]:
        """Return the class of that name; refuse unknown names with the nearest known one."""
        if name not in self:
            raise InvalidConfig(
                "unknown_name",
                f'There is no {self.word} "{name}". {did_you_mean(name, self)}',
                kind=self.word,
                name=name,
                known=tuple(self),
            )
        return self[name]

    def build(self, given: Kind | type[Kind] | str) -> Kind:
        """Return an object, given an object, a class or the name of a class."""
        if isinstance(given, str):
            given = self.find(given)
        if isinstance(given, self.base):
            return given
        if isinstance(given, type) and issubclass(given, self.base):
            return given()
        raise InvalidConfig(
            "wrong_type",
            f"Expected the name, the class or an object of a {self.word}, found {given!r}.",
            option=f"{self.word}s",
            found=type(given).__name__,
        )


def _without_none(hint: Any) -> Any:
    """Return the type of an option that may be None; any other type as it is."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 and type(None) in get_args(hint) else hint


def _problem(value: Any, hint: Any, metadata: Mapping[str, Any]) -> str | None:
    """Return what was expected of a value, or None if it is valid."""
    choices = metadata.get("choices")
    if choices is not None:
        return None if value in choices else f"one of {', '.join(map(str, choices))}"
    if hint == tuple[float, float]:
        is_pair = isinstance(value, tuple) and [type(end) for end in value] == [float, float]
        bounds = _broken_bounds(value, metadata) if is_pair else ""
        if is_pair and value[0] <= value[1] and bounds is None:
            return None
        return f"a pair (low, high) of numbers, low <= high{bounds or ''}"
    if hint not in (bool, int, float, str):
        return None
    if type(value) is not hint:
        return f"a value of type {hint.__name__}"
    bounds = _broken_bounds((value,), metadata) if hint in (int, float) else None
    return None if bounds is None else f"a finite number{bounds}"


def _broken_bounds(values: tuple[float, ...], metadata: Mapping[str, Any]) -> str | None:
    """Return the bounds in words if a value is outside of them or not finite, otherwise None."""
    low, high = metadata.get("low", -math.inf), metadata.get("high", math.inf)
    above, below = metadata.get("above", -math.inf), metadata.get("below", math.inf)
    if all(
        math.isfinite(value) and low <= value <= high and above < value < below for value in values
    ):
        return None
    words = {" from ": low, " above ": above, " to ": high, " below ": below}
    return "".join(f"{word}{bound:g}" for word, bound in words.items() if math.isfinite(bound))
