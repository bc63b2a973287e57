"""Options as frozen dataclasses that declare default, range and help of each value.

Hyper-parameters of methods, options of terms and parts, and those of commands are declared in this
way and validated here. The command line is made from the same declarations.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform, get_args, get_type_hints

from acclimate.errors import InvalidConfig, check_name, check_options, refuse_type

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


uniform, log_uniform = Uniform, LogUniform


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
    parse: Callable[[Any, str], Any] | None = None,
    **shown: Any,
) -> Any:
    """Declare an option: a dataclass field with its meaning and its allowed values.

    Args:
        default: The published value; without one, the option is required.
        help: What it does, with the paper's symbol if it has one.
        search: Values worth trying when tuning.
        low: Smallest allowed value.
        high: Largest allowed value.
        above: The value must be greater than this.
        below: The value must be less than this.
        choices: Allowed values, if there are few.
        parse: Turns what was given, and the name of the option, into the value. It must accept the
            value itself.
        **shown: How the command line shows it: `flags`, `metavar`, `panel`, `envvar`; `argument`
            for a positional argument, `repeat` if it may be repeated, `join` for what stands
            between the parts of one value, `stated` if `to_command` has it with its default, too.
    """
    metadata: dict[str, Any] = {
        "help": help,
        "search": search,
        "low": low,
        "high": high,
        "choices": choices,
    }
    metadata |= {"above": above, "below": below, "parse": parse, **shown}
    return field(default=default, metadata={**metadata, **shown})


def changed(options: type[Values], name: str, default: Any, **metadata: Any) -> Any:
    """Declare an inherited option again with another default; its range and help stay."""
    inherited = options.__dataclass_fields__[name].metadata
    return field(default=default, metadata={**inherited, **metadata})


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
            if value is None and type(None) in get_args(hints[spec.name]):
                continue
            value = _convert(value, hint, spec.name, spec.metadata)
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
        check_options(values, [spec.name for spec in dataclasses.fields(cls)], cls.__name__)
        return cls(**values)

    @classmethod
    def from_preset(cls, preset: str, values: Mapping[str, Any] | None = None) -> Self:
        """Build from the values published for a benchmark, such as `"imagenet"`.

        `values` override them.

        Raises:
            InvalidConfig: No values are known for that benchmark.
        """
        why = f" No values are published for {preset}." if preset in PRESETS else ""
        check_name(preset, cls.presets, "preset", InvalidConfig, why)
        return cls.from_dict({**cls.presets[preset], **(values or {})})

    @classmethod
    def taken_from(cls, other: Values) -> Self:
        """Build from the values of the same names in other options; the rest keeps its defaults."""
        names = [spec.name for spec in dataclasses.fields(cls) if hasattr(other, spec.name)]
        return cls(**{name: getattr(other, name) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """Return the values as plain JSON types."""
        return dataclasses.asdict(self)

    def to_command(self, *words: str, without: Iterable[str] = ()) -> str:
        """Return the command line that has these options; those with their defaults are left out.

        Args:
            *words: The names of the command.
            without: Options that are left out, too.
        """
        line = ["acclimate", *words]
        for spec in dataclasses.fields(self):
            value, meta = getattr(self, spec.name), spec.metadata
            is_default = value == spec.default and not meta.get("stated")
            if is_default or value is None or spec.name in without:
                continue
            flag, _, opposite = get_flags(spec)[0].partition("/")
            if isinstance(value, bool):
                line += [flag if value else opposite]
            else:
                texts = _to_texts(value, meta)
                line += [
                    w for text in texts for w in ([] if meta.get("argument") else [flag]) + [text]
                ]
        return shlex.join(line)

    @property
    def id(self) -> str:
        """A short name for exactly these values."""
        text = json.dumps([type(self).__name__, self.to_dict()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def get_flags(spec: dataclasses.Field[Any]) -> tuple[str, ...]:
    """Return how an option is written on the command line, such as `("--batch-size",)`."""
    return tuple(spec.metadata.get("flags") or (f"--{spec.name.replace('_', '-')}",))


def split_names(value: str | Iterable[Any], option: str = "") -> tuple[Any, ...]:
    """Return values that are separated by commas.

    >>> split_names("source, tent")
    ('source', 'tent')
    """
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return tuple(value)


def _to_texts(value: Any, metadata: Mapping[str, Any]) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{name}={part}" for name, part in value.items()]
    if isinstance(value, list | tuple):
        parts = list(map(str, value))
        return parts if metadata.get("repeat") else [metadata.get("join", ",").join(parts)]
    return [str(value)]


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
        check_name(name, self, self.word, InvalidConfig)
        return self[name]

    def build(self, given: Kind | type[Kind] | str) -> Kind:
        """Return an object, given an object, a class or the name of a class."""
        if isinstance(given, str):
            given = self.find(given)
        if isinstance(given, self.base):
            return given
        if not (isinstance(given, type) and issubclass(given, self.base)):
            kind = f"the name, the class or an object of a {self.word}"
            refuse_type(f"{self.word}s", type(given).__name__, kind, InvalidConfig)
        return given()


def _without_none(hint: Any) -> Any:
    """Return the type of an option that may be None; any other type as it is."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 and type(None) in get_args(hint) else hint


def _convert(value: Any, hint: Any, name: str, metadata: Mapping[str, Any]) -> Any:
    """Return a value as the type that is declared, where nothing else can be meant."""
    if (parse := metadata.get("parse")) is not None:
        return parse(value, name)
    if hint is float and type(value) is int:
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint == tuple[float, float] and isinstance(value, tuple | list):
        return tuple(float(end) if type(end) is int else end for end in value)
    return value


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
