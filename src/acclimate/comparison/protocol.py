"""How a comparison is run: the scenario with its options, as units that can be run alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import UnionType

from acclimate.comparison.run import Unit
from acclimate.errors import BadInput, did_you_mean
from acclimate.streams import (
    Domain,
    Stream,
    continual,
    dirichlet,
    episodic,
    epochs,
    gradual,
    imbalanced,
    label_sorted,
    mixed,
    recurring,
    reset_each,
    sliding_window,
    with_clean_probe,
)

#: By corruption, or by whatever tells domains apart: from mild to severe.
Groups = Mapping[str, Sequence[Domain]]

STREAMS = (
    *("reset_each", "continual", "gradual", "mixed"),
    *("recurring", "label_sorted", "dirichlet", "imbalanced"),
)
ORDERS = ("file", "shuffled")
#: Streams whose samples come in an order that is part of them, drawn by the seed.
OWN_ORDERS = ("mixed", "label_sorted", "dirichlet", "imbalanced")

_WHOLE = ("batch_size", "epochs", "window", "times")
# The options that only one scenario has, with the values they have if none is given.
_OPTIONS = {"times": ("recurring", 10), "delta": ("dirichlet", 0.1), "ratio": ("imbalanced", 100.0)}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A scenario and its options.

    Attributes:
        stream: One of `STREAMS`; see `acclimate.streams` for what each does.
        batch_size: Samples a batch.
        order: Of the samples within a domain: as in the files, or shuffled by the seed. The last
            four scenarios, and `mixed`, have orders of their own.
        times: Rounds of `recurring`; 10 if None.
        delta: Concentration of `dirichlet`; 0.1 if None.
        ratio: Of `imbalanced`; 100 if None.
        episodic: Whether to reset before every batch.
        epochs: Passes over each domain.
        window: Samples of a sliding window, through which single images come; 0 for batches.
        clean_probe: Whether to predict the clean set after each domain.
    """

    stream: str = "reset_each"
    batch_size: int = 200
    order: str = "file"
    times: int | None = None
    delta: float | None = None
    ratio: float | None = None
    episodic: bool = False
    epochs: int = 1
    window: int = 0
    clean_probe: bool = False

    def __post_init__(self) -> None:
        for what, known in (("stream", STREAMS), ("order", ORDERS)):
            value = getattr(self, what)
            if value not in known:
                raise BadInput(
                    "unknown_name",
                    f'Unknown {what} "{value}". {did_you_mean(str(value), known)}',
                    kind=what,
                    name=value,
                    known=known,
                )
        self._check_kinds()
        if self.batch_size < 1:
            raise BadInput(
                "out_of_range",
                f"Expected a batch size of at least 1, found {self.batch_size}.",
                option="batch_size",
                found=self.batch_size,
            )
        if self.epochs < 1:
            raise BadInput(
                "out_of_range",
                f"Expected epochs to be at least 1, found {self.epochs}.",
                option="epochs",
                found=self.epochs,
            )
        if self.window < 0 or self.window == 1:
            raise BadInput(
                "out_of_range",
                f"Expected a window of at least 2 images, or 0 for no window, found {self.window}.",
                option="window",
                found=self.window,
            )
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
        for name, lowest in (("times", 1), ("ratio", 1)):
            value = getattr(self, name)
            if value is not None and not value >= lowest:
                raise BadInput(
                    "out_of_range",
                    f"Expected {name} to be at least {lowest}, found {value}.",
                    option=name,
                    found=value,
                )
        if self.delta is not None and not 0 < self.delta < math.inf:
            raise BadInput(
                "out_of_range",
                f"Expected delta to be greater than 0, found {self.delta}. A typical value is 0.1.",
                option="delta",
                found=self.delta,
            )

    def _check_kinds(self) -> None:
        """Refuse what a file may hold and a type checker would not let through."""
        for name in ("episodic", "clean_probe"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise BadInput(
                    "wrong_type",
                    f"Expected true or false for {name}, found {value!r}.",
                    option=name,
                    found=value,
                )
        numbers: dict[str, type | UnionType] = dict.fromkeys(_WHOLE, int)
        numbers |= dict.fromkeys(("delta", "ratio"), int | float)
        for name, kind in numbers.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
                what = "an integer" if kind is int else "a number"
                raise BadInput(
                    "wrong_type",
                    f"Expected {what} for {name}, found {value!r}.",
                    option=name,
                    found=value,
                )

    def describe(self, groups: Groups, clean: Domain | None = None, seed: int = 0) -> str:
        """Return one line that says what is done; the seed only where it is used."""
        return self._decorate(self._stream(groups, seed), clean).protocol

    def units(self, groups: Groups, clean: Domain | None = None, seed: int = 0) -> tuple[Unit, ...]:
        """Return the stream in stretches that start with a reset.

        Args:
            groups: The domains; only `gradual` cares for the grouping.
            clean: What to probe.
            seed: Of the order.
        """
        if self.stream != "reset_each":
            whole = self._decorate(self._stream(groups, seed), clean)
            return (Unit(self.stream, whole, self._count(self._visits(groups), clean)),)
        return tuple(
            Unit(
                domain.name,
                self._decorate(self._stream({domain.name: [domain]}, seed), clean),
                self._count([domain], clean),
            )
            for domain in self._visits(groups)
        )

    def _stream(self, groups: Groups, seed: int) -> Stream:
        domains = [domain for own in groups.values() for domain in own]
        order = seed if self.order == "shuffled" else None
        size = self.batch_size
        makers: dict[str, Callable[[], Stream]] = {
            "reset_each": lambda: reset_each(domains, size, order),
            "continual": lambda: continual(domains, size, order),
            "gradual": lambda: gradual(groups, size, order),
            "recurring": lambda: recurring(domains, self.times or 1, size, order),
            "mixed": lambda: mixed(domains, size, seed),
            "label_sorted": lambda: label_sorted(domains, size, seed),
            "dirichlet": lambda: dirichlet(domains, self.delta or 0.0, size, seed),
            "imbalanced": lambda: imbalanced(domains, self.ratio or 0.0, size, seed),
        }
        return makers[self.stream]()

    def _decorate(self, stream: Stream, clean: Domain | None) -> Stream:
        if self.epochs > 1:
            stream = epochs(stream, self.epochs)
        if self.window:
            stream = sliding_window(stream, self.window)
        if self.clean_probe:
            if clean is None:
                raise BadInput(
                    "missing_option",
                    "The data has no clean images to probe with. Remove --clean-probe "
                    "(clean_probe).",
                    option="clean",
                )
            stream = with_clean_probe(stream, clean, self.batch_size)
        return episodic(stream) if self.episodic else stream

    def _visits(self, groups: Groups) -> list[Domain]:
        """Return the domains as often and in the order in which they come."""
        if self.stream == "gradual":
            return [domain for own in groups.values() for domain in [*own, *list(own)[-2::-1]]]
        domains = [domain for own in groups.values() for domain in own]
        return domains * (self.times or 1)

    def _count(self, visits: Sequence[Domain], clean: Domain | None) -> int:
        """Return how many batches there are, without making any."""
        lengths = [sum(map(len, visits))] if self.stream == "mixed" else list(map(len, visits))
        if self.window:
            n_batches = sum(lengths)
        else:
            n_batches = sum(math.ceil(length / self.batch_size) for length in lengths)
        n_batches *= self.epochs
        if self.clean_probe and clean is not None:
            names = ["mixed"] if self.stream == "mixed" else [domain.name for domain in visits]
            n_probes = sum(1 for _ in groupby(names * self.epochs))
            n_batches += n_probes * math.ceil(len(clean) / self.batch_size)
        return n_batches
