"""Ranking with confidence: a paired bootstrap between methods that met the same stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acclimate.bench.outcome import Outcome
from acclimate.bench.reports.facts import domain_errors
from acclimate.bench.reports.tabulate import Group, Row

#: How often the units are drawn anew, and the seed of these draws.
N_RESAMPLES = 10_000
SEED = 0

# The middle 95 % of the resamples.
_LOW, _HIGH = 2.5, 97.5
# An interval from fewer units than this is rough, and the report says so.
FEW_UNITS = 10

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Units:
    """What is drawn anew: errors that two methods have in common, one beside the other.

    Attributes:
        kind: "domain × seed pairs", "domains" or "batches".
        errors: In percent of the weight; a row for each method, a column for each unit.
        weights: How much each unit counts; 1 for pairs, the number of images for batches.
    """

    kind: str
    errors: Array
    weights: Array

    @property
    def n(self) -> int:
        """How many units there are."""
        return int(self.weights.size)


@dataclass(frozen=True)
class Difference:
    """How far a method is from another on the same units, in points of error.

    Attributes:
        value: Error of the first minus that of the second: below 0 if the first is better.
        low: Lower end of the 95 % interval.
        high: Upper end.
        probability: Share of the resamples in which the first has the lower error; a tie counts
            half.
        n_units: Units that were drawn from.
        kind: What the units are.
    """

    value: float
    low: float
    high: float
    probability: float
    n_units: int
    kind: str


@dataclass(frozen=True)
class Place:
    """A method in the ranking.

    Attributes:
        row: Of the table.
        rank: From 1; equal errors share a rank.
        ranks: The middle 95 % of its ranks over the resamples.
        to_next: How far it is from the method one place below; None for the last.
        to_first: How far it is from the first method; None for the first itself.
    """

    row: Row
    rank: int
    ranks: tuple[int, int]
    to_next: Difference | None
    to_first: Difference | None


@dataclass(frozen=True)
class Ranking:
    """The methods of one protocol in the order of their mean error.

    Attributes:
        protocol: Place of the protocol in the group.
        places: The lowest error first.
        kind: What was drawn anew.
        n_units: How many of them.
        n_resamples: How often.
    """

    protocol: int
    places: tuple[Place, ...]
    kind: str
    n_units: int
    n_resamples: int


def rank(group: Group, n_resamples: int = N_RESAMPLES, seed: int = SEED) -> tuple[Ranking, ...]:
    """Return a ranking for each protocol of a group that has at least two rows to compare.

    Rows that are incomplete, and oracles, are not ranked.
    """
    found = []
    for protocol in range(len(group.protocols)):
        rows = group.competing(protocol)
        if len(rows) < 2:
            continue
        units = pair([row.outcomes for row in rows])
        if units is not None:
            found.append(_rank(rows, protocol, units, n_resamples, seed))
    return tuple(found)


def pair(methods: Sequence[Sequence[Outcome]]) -> Units | None:
    """Return the units that all methods share; None if they share none.

    Units are pairs of a domain and a seed; domains, if there is one seed or if the seed changes
    nothing for any of the methods; batches, if there is one domain besides.

    Args:
        methods: The outcomes of each method, one a seed.
    """
    tables = [_pair_errors(outcomes) for outcomes in methods]
    shared = [key for key in tables[0] if all(key in table for table in tables)]
    first_seed = [key for key in shared if key[1] == shared[0][1]]
    if _is_same_for_all_seeds(tables, shared):
        shared = first_seed  # the same numbers again would make intervals too narrow
    if not shared:
        return None
    if len(shared) > 1:
        errors = np.array([[table[key] for key in shared] for table in tables])
        kind = "domains" if len(shared) == len(first_seed) else "domain × seed pairs"
        return Units(kind, errors, np.ones(len(shared)))
    return _pair_batches(methods, *shared[0])


def resample(units: Units, n_resamples: int = N_RESAMPLES, seed: int = SEED) -> Array:
    """Return the mean error of each method over each resample: a row a resample, a column a method.

    The same units are drawn for all methods, so that what is hard for all of them cancels in the
    differences.
    """
    draws = np.random.default_rng(seed)
    # How often each unit is drawn in so many draws with equal chances: a resample.
    times = draws.multinomial(units.n, np.full(units.n, 1 / units.n), size=n_resamples)
    weights = times * units.weights
    means: Array = (weights @ units.errors.T) / weights.sum(axis=1, keepdims=True)
    return np.round(means, 9)  # what differs by rounding only is equal


def compare(
    first: Sequence[Outcome],
    second: Sequence[Outcome],
    n_resamples: int = N_RESAMPLES,
    seed: int = SEED,
) -> Difference | None:
    """Return how far two methods are apart on what both were measured on; None if that is nothing.

    Args:
        first: Outcomes of a method, one a seed.
        second: The same of another method, or of the same method in another suite.
        n_resamples: How often the units are drawn anew.
        seed: Of the draws.
    """
    units = pair([first, second])
    return None if units is None else _difference(units, resample(units, n_resamples, seed), 0, 1)


def _rank(rows: Sequence[Row], protocol: int, units: Units, n_resamples: int, seed: int) -> Ranking:
    means = resample(units, n_resamples, seed)
    # Rank of each method in each resample: one more than there are methods with a lower error.
    ranks = 1 + (means[:, None, :] < means[:, :, None]).sum(axis=2)
    ends = np.percentile(ranks, [_LOW, _HIGH], axis=0)
    last = len(rows) - 1
    places = tuple(
        Place(
            row=row,
            rank=1 + sum(round(other.mean.mean, 9) < round(row.mean.mean, 9) for other in rows),
            ranks=(int(np.floor(ends[0, index])), int(np.ceil(ends[1, index]))),
            to_next=_difference(units, means, index, index + 1) if index < last else None,
            to_first=_difference(units, means, index, 0) if index else None,
        )
        for index, row in enumerate(rows)
    )
    return Ranking(protocol, places, units.kind, units.n, n_resamples)


def _difference(units: Units, means: Array, first: int, second: int) -> Difference:
    weights = units.weights / units.weights.sum()
    value = float(weights @ (units.errors[first] - units.errors[second]))
    apart = means[:, first] - means[:, second]
    low, high = np.percentile(apart, [_LOW, _HIGH])
    probability = float((apart < 0).mean() + (apart == 0).mean() / 2)
    return Difference(value, float(low), float(high), probability, units.n, units.kind)


def _is_same_for_all_seeds(
    tables: Sequence[Mapping[tuple[str, int], float]], shared: Sequence[tuple[str, int]]
) -> bool:
    for table in tables:
        errors: dict[str, float] = {}
        for key in shared:
            if errors.setdefault(key[0], table[key]) != table[key]:
                return False
    # Seeds that were measured on different domains are not the same.
    return len(shared) == len({seed for _, seed in shared}) * len({name for name, _ in shared})


def _pair_batches(methods: Sequence[Sequence[Outcome]], domain: str, seed: int) -> Units | None:
    batches = [_batches(outcomes, domain, seed) for outcomes in methods]
    if any(set(own) != set(batches[0]) for own in batches):
        return None
    sizes = [[own[index][0] for index in batches[0]] for own in batches]
    if any(own != sizes[0] for own in sizes) or len(sizes[0]) < 2:
        return None
    counts = np.array([[own[index][1] for index in batches[0]] for own in batches], float)
    return Units("batches", 100 * counts / np.array(sizes[0]), np.array(sizes[0], float))


def _pair_errors(outcomes: Sequence[Outcome]) -> dict[tuple[str, int], float]:
    return {
        (domain, outcome.entry.spec.seed): error
        for outcome in outcomes
        for domain, error in domain_errors(outcome).items()
    }


def _batches(outcomes: Sequence[Outcome], domain: str, seed: int) -> Mapping[int, tuple[int, int]]:
    """Return images and errors of the domain in each batch, by the batch's place in the stream."""
    return {
        record.index: record.by_domain[domain]
        for outcome in outcomes
        if outcome.entry.spec.seed == seed
        for record in outcome.result.counted
        if domain in record.by_domain
    }
