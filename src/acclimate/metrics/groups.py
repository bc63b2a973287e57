"""Groups of samples that are summed together, and probes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeVar

from acclimate.metrics.record import Record
from acclimate.metrics.sums import Sums

Name = TypeVar("Name", bound=Hashable)


class Group(NamedTuple):
    """Samples that are summed together: those of one domain in one pass, or of its probes."""

    epoch: int
    domain: str
    is_probe: bool = False


@dataclass(frozen=True)
class Probe:
    """A measurement of what the model still knows: batches that are predicted without learning.

    Attributes:
        domain: Name of the domain in the stream.
        index: Number of its first batch in the stream.
        n: Number of samples.
        n_errors: Number of wrong predictions among them.
    """

    domain: str
    index: int
    n: int
    n_errors: int

    @property
    def error(self) -> float:
        """Share of wrong predictions."""
        return self.n_errors / self.n


def find_probes(records: Iterable[Record]) -> tuple[Probe, ...]:
    """Return the probes in order; consecutive batches of one domain form one probe."""
    found = []
    for (is_probe, domain), batches in groupby(records, lambda r: (r.is_probe, r.domain)):
        if is_probe:
            own = list(batches)
            n, n_errors = sum(r.n for r in own), sum(r.n_errors for r in own)
            found.append(Probe(domain, own[0].index, n, n_errors))
    return tuple(found)


def find_errors(records: Iterable[Record]) -> dict[str, float]:
    """Return the share of wrong predictions in each domain, in order of occurrence."""
    wrong: dict[str, int] = {}
    seen: dict[str, int] = {}
    for record in records:
        for name, (n, n_errors) in record.by_domain.items():
            wrong[name] = wrong.get(name, 0) + n_errors
            seen[name] = seen.get(name, 0) + n
    # If every pixel is predicted, a domain may have no labelled pixel.
    return {name: wrong[name] / seen[name] for name in seen if seen[name]}


def estimate_errors(
    records: Iterable[Record], get: Callable[[Record], float | None]
) -> dict[str, float]:
    """Return the estimated error in each domain that has estimates, in order of occurrence.

    Args:
        records: Of batches.
        get: Returns the estimated accuracy of a batch, or None.
    """
    wrong: dict[str, float] = {}
    seen: dict[str, int] = {}
    for record in records:
        accuracy = get(record)
        if accuracy is None:
            continue
        for name, (n, _) in record.by_domain.items():
            wrong[name] = wrong.get(name, 0.0) + (1 - accuracy) * n
            seen[name] = seen.get(name, 0) + n
    return {name: wrong[name] / seen[name] for name in seen if seen[name]}


def merge(named: Iterable[tuple[Name, Sums]]) -> dict[Name, Sums]:
    """Return sums by name, with those of the same name added."""
    found: dict[Name, Sums] = {}
    for name, own in named:
        found[name] = found[name] + own if name in found else own
    return found
