"""Which samples are summed up together, and which are only looked at."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeVar

from acclimate.measures.accumulator import Measures
from acclimate.measures.record import Record

Name = TypeVar("Name", bound=Hashable)


class Group(NamedTuple):
    """Samples that are summed up together: those of one domain in one pass, or of its probes."""

    epoch: int
    domain: str
    is_probe: bool = False


@dataclass(frozen=True)
class Probe:
    """One look at what the model still knows: batches that were predicted and not learned from.

    Attributes:
        domain: As the stream names it.
        index: Number of its first batch in the stream.
        n: Samples.
        n_errors: Wrong predictions among them.
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
    """Return the probes in the order in which they came, each from batches without a gap."""
    found = []
    for (is_probe, domain), batches in groupby(records, lambda r: (r.is_probe, r.domain)):
        if is_probe:
            own = list(batches)
            n, n_errors = sum(r.n for r in own), sum(r.n_errors for r in own)
            found.append(Probe(domain, own[0].index, n, n_errors))
    return tuple(found)


def find_errors(records: Iterable[Record]) -> dict[str, float]:
    """Return the share of wrong predictions in each domain, in the order in which they came."""
    wrong: dict[str, int] = {}
    seen: dict[str, int] = {}
    for record in records:
        for name, (n, n_errors) in record.by_domain.items():
            wrong[name] = wrong.get(name, 0) + n_errors
            seen[name] = seen.get(name, 0) + n
    # Of pixels, a domain may have none with a label.
    return {name: wrong[name] / seen[name] for name in seen if seen[name]}


def merge(named: Iterable[tuple[Name, Measures]]) -> dict[Name, Measures]:
    """Return measures by name, those of one name added up."""
    found: dict[Name, Measures] = {}
    for name, own in named:
        found[name] = found[name] + own if name in found else own
    return found
