"""Ranking with confidence: a paired bootstrap between methods that met the same stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from acclimate.bench.outcome import Outcome
from acclimate.bench.reports.confidence import cap_share
from acclimate.bench.reports.facts import domain_errors
from acclimate.bench.reports.seeds import ignores_seed
from acclimate.bench.reports.tabulate import Group, Row

#: How often the units are drawn anew, and the seed of these draws.
N_RESAMPLES = 10_000
SEED = 0

# The middle 95 % of the resamples.
_LOW, _HIGH = 2.5, 97.5
# An interval from fewer units than this is rough, and the report says so.
FEW_UNITS = 10
# From fewer units than this there is none: the resamples are too much alike.
FEWEST_UNITS = 5

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Units:
    """What is drawn anew: errors that two methods have in common, one beside the other.

    Attributes:
        kind: "domain × seed pairs", "domains" or "batches".
        errors: In percent of the weight; a row for each method, a column for each unit: all of the
            first seed, then all of the second.
        weights: How much each unit counts; 1 for pairs, the number of images for batches.
        n_seeds: Seeds that the units are of.
    """

    kind: str
    errors: Array
    weights: Array
    n_seeds: int = 1

    @property
    def n(self) -> int:
        """How many units there are."""
        return int(self.weights.size)

    @property
    def means(self) -> Array:
        """Mean error of each method."""
        means: Array = (self.errors @ self.weights) / self.weights.sum()
        return np.round(means, 9)  # what differs by rounding only is equal


@dataclass(frozen=True)
class Difference:
    """How far a method is from another on the same units, in points of error.

    Attributes:
        value: Error of the first minus that of the second: below 0 if the first is better.
        low: Lower end of the 95 % interval.
        high: Upper end.
        probability: Share of the resamples in which the first has the lower error; a tie counts
            half. It is capped as `acclimate.bench.reports.confidence` says.
        n_units: Units that were drawn from.
        kind: What the units are.
    """

    value: float
    low: float
    high: float
    probability: float
    n_units: int
    kind: str

    @property
    def has_interval(self) -> bool:
        """Whether there are enough units for the interval to mean anything."""
        return self.n_units >= FEWEST_UNITS


@dataclass(frozen=True)
class Place:
    """A method in the ranking.

    Attributes:
        row: Of the table.
        error: Mean over what all methods of the ranking share, in percent.
        rank: From 1; equal errors share a rank.
        ranks: The middle 95 % of its ranks over the resamples.
        to_next: How far it is from the method one place below; None for the last.
        to_first: How far it is from the first method; None for the first itself.
    """

    row: Row
    error: float
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

    @property
    def has_intervals(self) -> bool:
        """Whether there are enough units for intervals to mean anything."""
        return self.n_units >= FEWEST_UNITS


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
    nothing for any of the methods; batches, if there is one domain besides. A method for which the
    seed changes nothing has the same errors for every seed.

    Args:
        methods: The outcomes of each method, one a seed.
    """
    tables = [{o.entry.spec.seed: domain_errors(o) for o in outcomes} for outcomes in methods]
    bound = [
        table for table, outcomes in zip(tables, methods, strict=True) if not ignores_seed(outcomes)
    ] or tables[:1]
    seeds = [seed for seed in bound[0] if all(seed in table for table in bound)]
    # A method that has not all of these seeds does not depend on them: any will do.
    chosen = [[table.get(s, next(iter(table.values()))) for s in seeds] for table in tables]
    every = [errors for own in chosen for errors in own]
    domains = [name for name in (every[0] if every else ()) if all(name in own for own in every)]
    if not domains:
        return None
    grid = np.array([[[errors[name] for name in domains] for errors in own] for own in chosen])
    if (grid == grid[:, :1]).all():
        grid = grid[:, :1]  # the same numbers again would make intervals too narrow
    if grid[0].size == 1:
        return _pair_batches(methods, domains[0])
    n_seeds = grid.shape[1]
    kind = "domains" if n_seeds == 1 else "domain × seed pairs"
    return Units(kind, grid.reshape(len(methods), -1), np.ones(grid[0].size), n_seeds)


def resample(units: Units, n_resamples: int = N_RESAMPLES, seed: int = SEED) -> Array:
    """Return the mean error of each method over each resample: a row a resample, a column a method.

    Seeds and domains are drawn separately, as all domains of a seed have something in common, and
    all seeds of a domain. The same are drawn for all methods, so that what is hard for all of them
    cancels in the differences.
    """
    draws = np.random.default_rng(seed)
    # How often each is drawn in so many draws with equal chances: a resample.
    by_seed, by_domain = (
        draws.multinomial(n, np.full(n, 1 / n), size=n_resamples)
        for n in (units.n_seeds, units.n // units.n_seeds)
    )
    times = (by_seed[:, :, None] * by_domain[:, None, :]).reshape(n_resamples, units.n)
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
    order = np.argsort(units.means, kind="stable")
    units = replace(units, errors=units.errors[order])
    errors = units.means.tolist()
    means = resample(units, n_resamples, seed)
    # Rank of each method in each resample: one more than there are methods with a lower error.
    ranks = 1 + (means[:, None, :] < means[:, :, None]).sum(axis=2)
    ends = np.percentile(ranks, [_LOW, _HIGH], axis=0)
    last = len(rows) - 1
    places = tuple(
        Place(
            row=rows[own],
            error=_as_shown(rows[own], errors[index]),
            rank=1 + sum(error < errors[index] for error in errors),
            ranks=(int(np.floor(ends[0, index])), int(np.ceil(ends[1, index]))),
            to_next=_difference(units, means, index, index + 1) if index < last else None,
            to_first=_difference(units, means, index, 0) if index else None,
        )
        for index, own in enumerate(order.tolist())
    )
    return Ranking(protocol, places, units.kind, units.n, n_resamples)


def _as_shown(row: Row, error: float) -> float:
    """Return the table's own number if it is the same, so that both round to the same digits."""
    return row.mean.mean if abs(row.mean.mean - error) < 1e-6 else error


def _difference(units: Units, means: Array, first: int, second: int) -> Difference:
    weights = units.weights / units.weights.sum()
    value = float(weights @ (units.errors[first] - units.errors[second]))
    apart = means[:, first] - means[:, second]
    low, high = np.percentile(apart, [_LOW, _HIGH])
    share = float((apart < 0).mean() + (apart == 0).mean() / 2)
    probability = cap_share(share, units.n)
    return Difference(value, float(low), float(high), probability, units.n, units.kind)


def _pair_batches(methods: Sequence[Sequence[Outcome]], domain: str) -> Units | None:
    """Return the batches of a domain; None if no seed is shared, as its order may be the seed's."""
    seeds = [{outcome.entry.spec.seed for outcome in outcomes} for outcomes in methods]
    shared = set.intersection(*seeds)
    if not shared:
        return None
    batches = [_batches(outcomes, domain, min(shared)) for outcomes in methods]
    if any(set(own) != set(batches[0]) for own in batches):
        return None
    sizes = [[own[index][0] for index in batches[0]] for own in batches]
    if any(own != sizes[0] for own in sizes) or len(sizes[0]) < 2:
        return None
    counts = np.array([[own[index][1] for index in batches[0]] for own in batches], float)
    return Units("batches", 100 * counts / np.array(sizes[0]), np.array(sizes[0], float))


def _batches(outcomes: Sequence[Outcome], domain: str, seed: int) -> Mapping[int, tuple[int, int]]:
    """Return images and errors of the domain in each batch, by the batch's place in the stream."""
    return {
        record.index: record.by_domain[domain]
        for outcome in outcomes
        if outcome.entry.spec.seed == seed
        for record in outcome.result.counted
        if domain in record.by_domain
    }
