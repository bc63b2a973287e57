"""How a stream is run: the scenario with its options, as units that can be run alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from acclimate import streams
from acclimate.errors import BadInput, check_at_least, check_name, refuse_type, refuse_value
from acclimate.streams import Batch, Domain, Stream
from acclimate.streams.correlated import check_markov, class_runs
from acclimate.streams.scenarios import count_foreign

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
# The options that only one scenario has, with the values they have if none is given.
_OPTIONS: dict[str, tuple[str, float | None]] = {
    "times": ("recurring", 20),
    "delta": ("dirichlet", 0.1),
    "ratio": ("imbalanced", 100.0),
    "n_batches": ("one_class", None),
    "n_classes": ("one_class", None),
    "frames": ("video", 32),
    "n_scenes": ("video", None),
    "period": ("alternating", 1),
    "share": ("foreign", 0.1),
    "n_samples": ("markov", None),
    "domain_correlation": ("markov", 0.85),
    "class_correlation": ("markov", 0.95),
    "domain_ratio": ("markov", 1.0),
    "class_ratio": ("markov", 1.0),
}
# Those that are integers of at least 1.
_COUNTS = ("times", "n_batches", "n_classes", "frames", "n_scenes", "period", "n_samples")
# Those that every protocol states, so that the names of earlier jobs stay what they were.
_ALWAYS = ("times", "delta", "ratio")


@dataclass(frozen=True)
class Unit:
    """A part of a stream that starts with a reset: it can be run, or run again, alone."""

    name: str
    batches: Iterable[Batch]
    n_batches: int


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A scenario and its options.

    Attributes:
        stream: One of `STREAMS`; see `acclimate.streams` for what each does.
        batch_size: Batch size; always 1 for `single_images`.
        order: Of the samples within a domain: as in the files, or shuffled by the seed. The
            scenarios in `OWN_ORDERS` have orders of their own.
        times: Rounds of `recurring`; 20 if None.
        delta: Concentration of `dirichlet`; 0.1 if None.
        ratio: Of `imbalanced`; 100 if None.
        n_batches: Batches of a class in a row, of `one_class`; 100 or the whole class if None.
        n_classes: Classes of each domain, of `one_class`; all if None.
        frames: Frames of a scene, of `video`; 32 if None.
        n_scenes: Scenes of each domain, of `video`; one of each image if None.
        period: Batches of one kind before the other comes, of `alternating`; 1 if None.
        share: Share of foreign images in a batch, of `foreign`; 0.1 if None.
        n_samples: Samples of `markov`; as many as the domains have together if None.
        domain_correlation: Probability that the domain stays, of `markov`; 0.85 if None.
        class_correlation: Probability that the class stays, of `markov`; 0.95 if None.
        domain_ratio: Imbalance of the domains, of `markov`; 1 if None.
        class_ratio: Imbalance of the classes, of `markov`; 1 if None.
        episodic: Whether to reset before every batch.
        epochs: Passes over each domain.
        window: Samples of a sliding window, through which single images come; 0 for batches.
        clean_probe: Whether to predict the clean set after each domain.
    """

    stream: str = "reset_each"
    batch_size: int = _BATCH_SIZE
    order: str = "file"
    times: int | None = None
    delta: float | None = None
    ratio: float | None = None
    n_batches: int | None = None
    n_classes: int | None = None
    frames: int | None = None
    n_scenes: int | None = None
    period: int | None = None
    share: float | None = None
    n_samples: int | None = None
    domain_correlation: float | None = None
    class_correlation: float | None = None
    domain_ratio: float | None = None
    class_ratio: float | None = None
    episodic: bool = False
    epochs: int = 1
    window: int = 0
    clean_probe: bool = False

    def __post_init__(self) -> None:
        check_name(self.stream, STREAMS, "stream")
        check_name(self.order, ORDERS, "order")
        self._check_types()
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
        for name, (stream, default) in _OPTIONS.items():
            if self.stream == stream and getattr(self, name) is None:
                object.__setattr__(self, name, default)
            elif self.stream != stream and getattr(self, name) is not None:
                raise BadInput(
                    "not_applicable",
                    f"The option {name} applies only to the stream {stream}, found the stream "
                    f"{self.stream}.",
                    option=name,
                )
        for name in (*_COUNTS, "ratio"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < math.inf:
                refuse_value(name, value, "at least 1")
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

    def _check_types(self) -> None:
        """Refuse what a file may hold and a type checker would not let through."""
        for name, value in vars(self).items():
            if name in ("stream", "order") or value is None:
                continue
            is_bool = isinstance(value, bool)
            if name in ("episodic", "clean_probe"):
                if not is_bool:
                    refuse_type(name, value, "true or false")
            elif name in _OPTIONS and name not in _COUNTS:
                if is_bool or not isinstance(value, int | float):
                    refuse_type(name, value, "a number")
            elif is_bool or not isinstance(value, int):
                refuse_type(name, value, "an integer")

    @property
    def needs_clean(self) -> bool:
        """Whether clean images are needed: to probe with, or as a part of the stream."""
        return self.clean_probe or self.stream == "alternating"

    @property
    def own_options(self) -> dict[str, float]:
        """The options that only this scenario has, with their values."""
        values = {name: getattr(self, name) for name in _OPTIONS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def _chances(self) -> dict[str, float]:
        names = ("domain_correlation", "class_correlation", "domain_ratio", "class_ratio")
        return {name: value for name, value in self.own_options.items() if name in names}

    def to_dict(self) -> dict[str, Any]:
        """Return all options as JSON types; those of other scenarios are left out."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None or name not in _OPTIONS or name in _ALWAYS
        }

    def describe(self, groups: Groups, clean: Domain | None = None, seed: int = 0) -> str:
        """Return one line that describes what is done; the seed only where it is used."""
        return self._decorate(self._stream(groups, clean, seed), clean).protocol

    def units(self, groups: Groups, clean: Domain | None = None, seed: int = 0) -> tuple[Unit, ...]:
        """Return the stream in parts that start with a reset.

        Only `gradual` uses the grouping. `clean` is probed, and comes in turns with the domains in
        `alternating`.
        """
        parts: list[tuple[str, Groups]] = [(self.stream, groups)]
        if self.stream in RESET_EACH:
            parts = [(d.name, {d.name: [d]}) for own in groups.values() for d in own]
        return tuple(
            Unit(
                name,
                self._decorate(self._stream(own, clean, seed), clean),
                self._count(self._stretches(own, clean, seed), clean),
            )
            for name, own in parts
        )

    def _stream(self, groups: Groups, clean: Domain | None, seed: int) -> Stream:
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
        return make(given, *own.get(self.stream, (size, order)))

    def _decorate(self, stream: Stream, clean: Domain | None) -> Stream:
        if self.epochs > 1:
            stream = streams.epochs(stream, self.epochs)
        if self.window:
            stream = streams.sliding_window(stream, self.window)
        if self.clean_probe:
            stream = streams.with_clean_probe(stream, self._need(clean), self.batch_size)
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

    def _stretches(self, groups: Groups, clean: Domain | None, seed: int) -> list[tuple[str, int]]:
        """Return what is cut into batches one after the other: domains and numbers of samples."""
        domains = [domain for own in groups.values() for domain in own]
        n, size = sum(map(len, domains)), self.batch_size
        if self.stream in ("mixed", "markov"):
            return [("mixed", self.n_samples or n)]
        if self.stream == "gradual":
            domains = [d for own in groups.values() for d in [*own, *list(own)[-2::-1]]]
        if self.stream == "video":
            most = self.n_scenes or n
            return [(d.name, min(most, len(d)) * (self.frames or 1)) for d in domains]
        if self.stream == "foreign":
            added = count_foreign(self.share or 0.0, size)
            return [(d.name, len(d) + added * math.ceil(len(d) / (size - added))) for d in domains]
        if self.stream == "one_class":
            runs = (self.n_batches, self.n_classes)
            return [
                (domain.name, length)
                for number, domain in enumerate(domains)
                for _, length in class_runs(domain.labels, *runs, size, seed, number)
            ]
        if self.stream == "alternating":
            found, longest = list[tuple[str, int]](), size * (self.period or 1)
            for domain in domains:
                for start in range(0, len(domain), longest):
                    length = min(longest, len(domain) - start)
                    whole = math.ceil(length / size) * size
                    found += [(self._need(clean).name, whole), (domain.name, length)]
            return found
        return [(domain.name, len(domain)) for domain in domains] * (self.times or 1)

    def _count(self, stretches: Sequence[tuple[str, int]], clean: Domain | None) -> int:
        """Return how many batches there are, without making any."""
        size = 1 if self.window else self.batch_size
        n_batches = self.epochs * sum(math.ceil(length / size) for _, length in stretches)
        if self.clean_probe and clean is not None:
            names = [name for name, _ in stretches]
            n_probes = sum(1 for _ in groupby(names * self.epochs))
            n_batches += n_probes * math.ceil(len(clean) / self.batch_size)
        return n_batches
