"""How a stream is run: the scenario with its options, as units that can be run alone."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from acclimate.errors import (
    AcclimateError,
    BadInput,
    check_at_least,
    check_name,
    refuse_type,
    refuse_value,
)
from acclimate.options import Values, hp, options

if TYPE_CHECKING:  # the command line takes the options from here, without torch
    from acclimate.streams import Batch, Domain, Stream

    #: By corruption, or by whatever distinguishes domains: from mild to severe.
    Groups = Mapping[str, Sequence[Domain]]

STREAMS = (
    *("reset_each", "continual", "gradual", "mixed"),
    *("recurring", "label_sorted", "dirichlet", "imbalanced"),
    *("single_images", "one_class", "video", "alternating", "foreign", "markov"),
)
ORDERS = ("file", "shuffled")
#: Streams whose samples come in an order that is part of them, drawn by the seed.
OWN_ORDERS = (
    *("mixed", "label_sorted", "dirichlet", "imbalanced"),
    *("single_images", "one_class", "video", "foreign", "markov"),
)
#: Streams that reset the method before each domain, so that each domain can be run alone.
RESET_EACH = ("reset_each", "single_images")

_BATCH_SIZE = 200
# Those own options that every protocol states, so that the keys of earlier jobs stay the same.
_ALWAYS = ("times", "delta", "ratio")
# What is expected of a value, if the type of its field shows it.
_EXPECTED = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


#: The types of the fields of a dataclass, by name.
hints_of: Callable[[Any], dict[str, Any]] = cache(
    lambda kind: {k: v for k, v in get_type_hints(kind).items() if get_origin(v) is not ClassVar}
)


def check_types(
    values: Any,
    expected: Mapping[str, str] | None = None,
    where: str = "",
    error: type[AcclimateError] = BadInput,
) -> None:
    """Refuse values of a dataclass of another type than their fields declare.

    `expected` describes what the type of a field does not show, `where` is put before its name.
    """
    for name, hint in hints_of(type(values)).items():
        value = getattr(values, name)
        if not _fits(value, hint):
            kinds = [_EXPECTED[kind] for kind in (hint, *get_args(hint)) if kind in _EXPECTED]
            text = (expected or {}).get(name) or kinds[0]
            refuse_type(f"{where}{name}", value, text, error)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of a field; texts must not be empty."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if kind is Literal:
        return value in inner
    if kind is tuple:
        return isinstance(value, list | tuple) and all(_fits(each, inner[0]) for each in value)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(_fits(v, inner[1]) for v in value.values())
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return hint is Any or (isinstance(value, hint) and value != "")


def _option(default: Any, help: str, **about: Any) -> Any:  # noqa: A002
    return hp(default, panel="Stream", help=help, **about)


def _own(stream: str, usual: float | None, help: str) -> Any:  # noqa: A002
    """Declare an option that only one scenario has, with its value if none is given."""
    return _option(None, f"{stream}: {help}", stream=stream, usual=usual)


@dataclass(frozen=True)
class Unit:
    """A part of a stream that starts with a reset: it can be run, or run again, alone."""

    name: str
    batches: Iterable[Batch]
    n_batches: int


@options
class StreamOptions(Values):
    """A scenario and its options."""

    stream: str = hp(
        "reset_each",
        help="reset_each, continual, gradual, mixed, recurring, label_sorted, dirichlet, "
        "imbalanced, single_images, one_class, video, alternating, foreign or markov.",
    )
    batch_size: int = hp(_BATCH_SIZE, help="Batch size; single_images has 1.")
    order: str = _option("file", "file or shuffled; default: file, but shuffled for folders.")
    times: int | None = _own("recurring", 20, "rounds; default: 20.")
    delta: float | None = _own("dirichlet", 0.1, "concentration; default: 0.1.")
    ratio: float | None = _own("imbalanced", 100.0, "ratio of the dominant class; default: 100.")
    n_batches: int | None = _own(
        "one_class", None, "batches of a class, recycled; default: 100 or all."
    )
    n_classes: int | None = _own("one_class", None, "classes of each domain; default: all.")
    frames: int | None = _own("video", 32, "frames of a scene; default: 32.")
    n_scenes: int | None = _own("video", None, "scenes of each domain; default: one per image.")
    period: int | None = _own("alternating", 1, "batches before the other kind; default: 1.")
    share: float | None = _own("foreign", 0.1, "share of noise images, not counted; default: 0.1.")
    n_samples: int | None = _own("markov", None, "images, recycled; default: as many as there are.")
    domain_correlation: float | None = _own(
        "markov", 0.85, "probability that the domain stays; default: 0.85."
    )
    class_correlation: float | None = _own(
        "markov", 0.95, "probability that the class stays; default: 0.95."
    )
    domain_ratio: float | None = _own(
        "markov", 1.0, "first domain over last, in frequency; default: 1."
    )
    class_ratio: float | None = _own(
        "markov", 1.0, "first class over last, in frequency; default: 1."
    )
    episodic: bool = _option(False, "Reset before every batch.")
    epochs: int = _option(1, "Passes over each domain.")
    window: int = _option(0, "Size of a sliding window over single images; 0: ordinary batches.")
    clean_probe: bool = _option(False, "Predict the clean set after each domain.")


@options
class Protocol(StreamOptions):
    """A scenario and its options, validated together; those of the scenario have their values."""

    def __post_init__(self) -> None:
        check_name(self.stream, STREAMS, "stream")
        check_name(self.order, ORDERS, "order")
        check_types(self)
        check_at_least("batch_size", self.batch_size, 1)
        check_at_least("epochs", self.epochs, 1)
        if self.window < 0 or self.window == 1:
            refuse_value("window", self.window, "at least 2 images, or 0 for no window")
        if self.window and self.episodic:
            raise BadInput(
                "conflicting_options",
                "A sliding window keeps previous images, but an episodic stream resets after "
                "every batch. Use either --window or --episodic (window, episodic).",
                options=("window", "episodic"),
            )
        for spec in fields(self):
            name, stream = spec.name, spec.metadata.get("stream")
            if stream == self.stream and getattr(self, name) is None:
                object.__setattr__(self, name, spec.metadata["usual"])
            elif stream not in (None, self.stream) and getattr(self, name) is not None:
                raise BadInput(
                    "not_applicable",
                    f"The option {name} applies only to the stream {stream}, found the stream "
                    f"{self.stream}.",
                    option=name,
                )
            value = getattr(self, name)
            is_count = stream is not None and str(spec.type).startswith("int")
            if (is_count or name == "ratio") and value is not None and not 1 <= value < math.inf:
                refuse_value(name, value, "at least 1")
        self._check_stream()

    def _check_stream(self) -> None:
        from acclimate.streams.correlated import check_markov
        from acclimate.streams.scenarios import count_foreign

        if self.delta is not None and not 0 < self.delta < math.inf:
            refuse_value("delta", self.delta, "greater than 0, such as 0.1")
        if self.share is not None:
            count_foreign(self.share, self.batch_size)
        if self.stream == "markov":
            check_markov(**self._chances)
        if self.stream == "single_images":
            if self.batch_size not in (1, _BATCH_SIZE):
                raise BadInput(
                    "conflicting_options",
                    f"The stream single_images has batches of 1, found a batch size of "
                    f"{self.batch_size}. Remove --batch-size (batch_size), or use another stream.",
                    options=("stream", "batch_size"),
                )
            object.__setattr__(self, "batch_size", 1)

    @property
    def needs_clean(self) -> bool:
        """Whether clean images are needed: to probe with, or as a part of the stream."""
        return self.clean_probe or self.stream == "alternating"

    @property
    def own_options(self) -> dict[str, Any]:
        """The options that only this scenario has, with their values."""
        own = [spec.name for spec in fields(self) if "stream" in spec.metadata]
        return {name: getattr(self, name) for name in own if getattr(self, name) is not None}

    @property
    def _chances(self) -> dict[str, float]:
        return {k: v for k, v in self.own_options.items() if k.startswith(("domain_", "class_"))}

    def to_dict(self) -> dict[str, Any]:
        """Return all options as JSON types; those of other scenarios are left out."""
        values = asdict(self)
        return {k: v for k, v in values.items() if v is not None or k in _ALWAYS}

    def describe(self, groups: Groups, clean: Domain | None = None, seed: int = 0) -> str:
        """Return one line that describes what is done; the seed only where it is used."""
        return self._stream(groups, clean, seed).protocol

    def units(self, groups: Groups, clean: Domain | None = None, seed: int = 0) -> tuple[Unit, ...]:
        """Return the stream in parts that start with a reset.

        Only `gradual` uses the grouping. `clean` is probed, and comes in turns with the domains in
        `alternating`.
        """
        parts: list[tuple[str, Groups]] = [(self.stream, groups)]
        if self.stream in RESET_EACH:
            parts = [(d.name, {d.name: [d]}) for own in groups.values() for d in own]
        return tuple(
            Unit(name, self._stream(own, clean, seed), self._count(own, clean, seed))
            for name, own in parts
        )

    def _stream(self, groups: Groups, clean: Domain | None, seed: int) -> Stream:
        from acclimate import streams

        domains = [domain for own in groups.values() for domain in own]
        order = seed if self.order == "shuffled" else None
        size = self.batch_size
        between = self._need(clean) if self.stream == "alternating" else None
        # Arguments of the scenarios after the domains.
        own: dict[str, tuple[Any, ...]] = {
            "recurring": (self.times, size, order),
            "mixed": (size, seed),
            "label_sorted": (size, seed),
            "dirichlet": (self.delta, size, seed),
            "imbalanced": (self.ratio, size, seed),
            "single_images": (seed,),
            "one_class": (self.n_batches, self.n_classes, size, seed),
            "video": (self.frames, self.n_scenes, size, seed),
            "alternating": (between, self.period, size, order),
            "foreign": (self.share, size, seed),
            "markov": (self.n_samples, *self._chances.values(), size, seed),
        }
        make: Callable[..., Stream] = getattr(streams, self.stream)
        given = groups if self.stream == "gradual" else domains
        stream = make(given, *own.get(self.stream, (size, order)))
        if self.epochs > 1:
            stream = streams.epochs(stream, self.epochs)
        if self.window:
            stream = streams.sliding_window(stream, self.window)
        if self.clean_probe:
            stream = streams.with_clean_probe(stream, self._need(clean), size)
        return streams.episodic(stream) if self.episodic else stream

    def _need(self, clean: Domain | None) -> Domain:
        if clean is None:
            text = f"The data has no clean images. {self.without_clean}"
            raise BadInput("missing_option", text, option="clean")
        return clean

    @property
    def without_clean(self) -> str:
        """What to do if there are no clean images."""
        if self.stream == "alternating":
            return "Use another stream than alternating, or other data."
        return "Remove --clean-probe (clean_probe)."

    def _count(self, groups: Groups, clean: Domain | None, seed: int) -> int:
        """Return how many batches there are: those of the same stream without any image."""
        blank = {name: [domain.blank() for domain in own] for name, own in groups.items()}
        probed = None if clean is None else clean.blank()
        plain = replace(self, window=0)
        if self.stream == "video":  # it would make all frames of blank images as well
            plain = replace(plain, stream="continual", frames=None, n_scenes=None)
            domains = [domain for own in groups.values() for domain in own]
            scenes = [min(len(domain), self.n_scenes or len(domain)) for domain in domains]
            frames = [n * (self.frames or 1) for n in scenes]
            blank = {"": [d.blank(n) for d, n in zip(domains, frames, strict=True)]}
        batches = plain._stream(blank, probed, seed)
        return sum(len(batch.y) if self.window and batch.learns else 1 for batch in batches)
