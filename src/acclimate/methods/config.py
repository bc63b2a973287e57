"""Hyper-parameters: one frozen dataclass a method, with default, range and help in one place."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, get_type_hints

from acclimate.errors import InvalidConfig, did_you_mean
from acclimate.functional.norm import STATISTICS

#: Benchmarks that published values are known for.
PRESETS = ("cifar10", "cifar100", "imagenet", "cityscapes")


@dataclass(frozen=True)
class Uniform:
    """A range to search evenly."""

    low: float
    high: float


@dataclass(frozen=True)
class LogUniform:
    """A range to search evenly in the logarithm."""

    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """Values to try."""

    values: tuple[Any, ...]


Search = Uniform | LogUniform | Choice


def uniform(low: float, high: float) -> Uniform:
    """Declare a range to search evenly."""
    return Uniform(low, high)


def log_uniform(low: float, high: float) -> LogUniform:
    """Declare a range to search evenly in the logarithm."""
    return LogUniform(low, high)


def choice(*values: Any) -> Choice:
    """Declare values to try."""
    return Choice(values)


def hp(
    default: Any,
    *,
    help: str,  # noqa: A002
    search: Search | None = None,
    low: float = -math.inf,
    high: float = math.inf,
    choices: tuple[Any, ...] | None = None,
) -> Any:
    """Declare a hyper-parameter: a dataclass field with its meaning and its legal values.

    Args:
        default: The published value.
        help: What it does; the paper's symbol, if it has one, is named here.
        search: What is worth trying when tuning.
        low: Smallest legal value.
        high: Largest legal value.
        choices: Legal values, if they are few.
    """
    metadata = {"help": help, "search": search, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Values:
    """Plain values, each checked against what it was declared with."""

    #: Values published for a benchmark, by its name; what is not named keeps its default.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __post_init__(self) -> None:
        problems = {}
        hints = get_type_hints(type(self))
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if hints[spec.name] is float and type(value) is int:
                object.__setattr__(self, spec.name, value := float(value))
            problem = _problem(value, hints[spec.name], spec.metadata)
            if problem:
                problems[spec.name] = f"{spec.name} = {value!r}: expected {problem}"
        if problems:
            lines = "".join(f"\n  {problem}" for problem in problems.values())
            raise InvalidConfig(
                "invalid_options",
                f"{type(self).__name__} cannot be built:{lines}",
                problems=problems,
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from plain values; unknown names are refused with the nearest known one."""
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
        """Build from the values published for a benchmark, such as `"imagenet"`; some may differ.

        A method whose defaults hold for the benchmark has no preset of that name, and gives them.

        Raises:
            InvalidConfig: No method knows such a benchmark.
        """
        if preset not in PRESETS:
            raise InvalidConfig(
                "unknown_name",
                f'there is no preset "{preset}". {did_you_mean(preset, PRESETS)}',
                kind="preset",
                name=preset,
                known=PRESETS,
            )
        return cls.from_dict({**cls.presets.get(preset, {}), **(values or {})})

    @classmethod
    def taken_from(cls, other: Values) -> Self:
        """Build from the values of the same names in a larger set of options."""
        return cls(**{spec.name: getattr(other, spec.name) for spec in dataclasses.fields(cls)})

    def to_dict(self) -> dict[str, Any]:
        """Return the values as plain JSON types."""
        return dataclasses.asdict(self)

    @property
    def id(self) -> str:
        """A short name for exactly these values."""
        text = json.dumps([type(self).__name__, self.to_dict()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Config(Values):
    """Options every method has."""

    statistics: str = hp(
        "batch",
        choices=STATISTICS,
        help="BatchNorm statistics: of the batch, running (move, then used), the source's, "
        "mixed (source and batch), or robust (mixed and kept)",
    )
    statistics_momentum: float = hp(
        0.1, low=0.0, high=1.0, help="share of the batch in running, mixed and robust statistics"
    )


@dataclass(frozen=True, kw_only=True)
class GradientConfig(Config):
    """Options of every method that learns by gradient steps."""

    # The rate that TENT and those after it use on ImageNet, at batches of 64.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": {"optimizer": "sgd", "lr": 2.5e-4}
    }

    optimizer: str = hp("adam", choices=("adam", "adamw", "sgd"), help="the optimiser")
    lr: float = hp(
        1e-3, low=0.0, search=log_uniform(1e-5, 1e-2), help="learning rate of the optimiser"
    )
    beta1: float = hp(0.9, low=0.0, high=0.999999, help="Adam's decay of the mean gradient")
    beta2: float = hp(
        0.999, low=0.0, high=0.99999999, help="Adam's decay of the mean squared gradient"
    )
    sgd_momentum: float = hp(0.9, low=0.0, high=1.0, help="momentum of SGD")
    nesterov: bool = hp(False, help="Nesterov's form of SGD's momentum")
    weight_decay: float = hp(0.0, low=0.0, help="weight decay of the optimiser")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.sgd_momentum == 0:
            raise InvalidConfig(
                "conflicting_options",
                "nesterov = True needs a momentum, but sgd_momentum is 0. Set one of them.",
                options=("nesterov", "sgd_momentum"),
            )


def _problem(value: Any, hint: Any, metadata: Mapping[str, Any]) -> str | None:
    """Return what was expected of a value, or None if it is legal."""
    choices = metadata.get("choices")
    if choices is not None:
        return None if value in choices else f"one of {', '.join(map(str, choices))}"
    if hint not in (bool, int, float, str):
        return None
    if type(value) is not hint:
        return f"a value of type {hint.__name__}"
    low, high = metadata.get("low", -math.inf), metadata.get("high", math.inf)
    if hint in (int, float) and not (math.isfinite(value) and low <= value <= high):
        return (
            "a finite number" if low == -math.inf else f"a finite number from {low:g} to {high:g}"
        )
    return None
