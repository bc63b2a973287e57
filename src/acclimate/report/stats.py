"""Statistics of reports: means over seeds, the paired bootstrap, and ranks with intervals.

Errors are paired: all methods were measured with the same seeds on the same domains. A statistic is
computed again on tables whose seeds and domains are drawn with replacement, the same for all
methods, so that what is hard for all of them cancels in the differences.

Few pairs agree easily by chance, which resamples cannot see, as they draw from these pairs only.
n pairs cannot show anything with more confidence than 1 - 2^-n, that of the sign test.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from acclimate.bench.suite import Outcome
from acclimate.report.facts import domain_errors, ignores_seed

if TYPE_CHECKING:
    from acclimate.report.summary import Row

#: Number of resamples, and the seed of their draws.
N_RESAMPLES = 10_000
SEED = 0
#: With fewer units than this, an interval is rough.
FEW_UNITS = 10
#: With fewer units than this there is no interval: the resamples are too much alike.
FEWEST_UNITS = 5

_MIDDLE = (2.5, 97.5)  # percentiles: the middle 95 % of the resamples

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Measure:
    """A number in percent: mean over seeds, and their standard deviation if there are several."""

    mean: float
    deviation: float | None = None
    n_seeds: int = 1

    @classmethod
    def of(cls, values: Sequence[float]) -> Measure:
        """Return mean and sample standard deviation of one value for each seed."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, len(values))

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.1f}"
        return f"{self.mean:.1f}{spread}"


def margin(n_images: int) -> float:
    """Return half the width, in points, of the widest 95 % interval of an error on so many."""
    return 1.96 * 50 / math.sqrt(n_images)


def most_confidence(n_pairs: int) -> float:
    """Return the highest confidence that so many pairs allow: 1 - 2^-n.

    >>> most_confidence(1), most_confidence(3)
    (0.5, 0.875)
    """
    return 1 - 0.5**n_pairs


def resample(
    errors: Array, n_resamples: int = N_RESAMPLES, seed: int = SEED, weights: Array | None = None
) -> Array:
    """Return means over seeds and domains that are drawn with replacement, the same for all rows.

    Seeds and domains are drawn separately, as all domains of a seed have something in common, and
    all seeds of a domain.

    `errors` are rows × seeds × domains, `weights` how much each domain counts. The result has a row
    for each resample and a column for each row of `errors`.
    """
    _, n_seeds, n_domains = errors.shape
    draws = np.random.default_rng(seed)
    by_seed, by_domain = (
        draws.multinomial(n, np.full(n, 1 / n), size=n_resamples) for n in (n_seeds, n_domains)
    )
    counts = by_domain * (np.ones(n_domains) if weights is None else weights)
    shares = (by_seed / n_seeds, counts / counts.sum(axis=1, keepdims=True))
    return np.stack([np.einsum("ns,sd,nd->n", shares[0], own, shares[1]) for own in errors], axis=1)


@dataclass(frozen=True)
class Units:
    """What is resampled: errors in percent that methods have in common, by seed and domain.

    Attributes:
        kind: "domain × seed pairs", "domains" or "batches".
        errors: Methods × seeds × domains.
        weights: How much each domain counts; the number of images for batches, else 1.
    """

    kind: str
    errors: Array
    weights: Array

    @property
    def n(self) -> int:
        """Number of units."""
        return int(self.errors[0].size)

    @property
    def means(self) -> Array:
        """Mean error of each method."""
        means: Array = np.average(self.errors.mean(axis=1), axis=1, weights=self.weights)
        return np.round(means, 9)  # what differs by rounding only is equal

    def resample(self, n_resamples: int = N_RESAMPLES, seed: int = SEED) -> Array:
        """Return the mean error of each method (columns) in each resample (rows)."""
        # What differs by rounding only is equal.
        return np.round(resample(self.errors, n_resamples, seed, self.weights), 9)

    def compare(self, means: Array, first: int, second: int) -> Difference:
        """Return how far two of the methods are apart; `means` are those of the resamples."""
        apart = means[:, first] - means[:, second]
        low, high = np.percentile(apart, _MIDDLE)
        between = (self.errors[first] - self.errors[second]).mean(axis=0)
        value = float(np.average(between, weights=self.weights))
        share = float((apart < 0).mean() + (apart == 0).mean() / 2)
        most = most_confidence(self.n)
        probability = min(max(share, 1 - most), most)
        return Difference(value, float(low), float(high), probability, self.n, self.kind)


@dataclass(frozen=True)
class Difference:
    """How far a method is from another on the same units, in points of error.

    Attributes:
        value: Error of the first minus that of the second: below 0 if the first is better.
        low: Lower end of the 95 % interval.
        high: Upper end.
        probability: Share of the resamples in which the first has the lower error; a tie counts
            half. It is at most 1 - 2^-n for n units, and at least 2^-n.
        n_units: Number of units.
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
        """Whether there are enough units for an interval."""
        return self.n_units >= FEWEST_UNITS


@dataclass(frozen=True, eq=False)
class Place:
    """A row in a ranking, with its mean error in percent over what all rows share.

    `rank` is from 1, and equal errors share one; `ranks` are the middle 95 % over the resamples.
    The differences are to the row one place below and to the first; None for the last and the
    first.
    """

    row: Row
    error: float
    rank: int
    ranks: tuple[int, int]
    to_next: Difference | None
    to_first: Difference | None


@dataclass(frozen=True, eq=False)
class Ranking:
    """Rows of one protocol in the order of their mean error, and what it was measured on."""

    places: tuple[Place, ...]
    kind: str
    n_units: int
    n_resamples: int

    @property
    def protocol(self) -> int:
        """Index of the protocol of the rows in their group."""
        return self.places[0].row.protocol

    @property
    def has_intervals(self) -> bool:
        """Whether there are enough units for intervals."""
        return self.n_units >= FEWEST_UNITS


def rank(rows: Sequence[Row], n_resamples: int = N_RESAMPLES, seed: int = SEED) -> Ranking | None:
    """Return the ranking of rows, the lowest error first; None if they share no units."""
    units = pair([row.outcomes for row in rows]) if len(rows) > 1 else None
    if units is None:
        return None
    order = np.argsort(units.means, kind="stable")
    units = replace(units, errors=units.errors[order])
    errors = units.means.tolist()
    means = units.resample(n_resamples, seed)
    ranks = np.stack([1 + (means < own[:, None]).sum(axis=1) for own in means.T], axis=1)
    low, high = np.percentile(ranks, _MIDDLE, axis=0)
    last = len(errors) - 1
    places = tuple(
        Place(
            row=rows[own],
            error=errors[place],
            rank=1 + errors.index(errors[place]),  # errors ascend
            ranks=(math.floor(low[place]), math.ceil(high[place])),
            to_next=units.compare(means, place, place + 1) if place < last else None,
            to_first=units.compare(means, place, 0) if place else None,
        )
        for place, own in enumerate(order.tolist())
    )
    return Ranking(places, units.kind, units.n, n_resamples)


def compare(first: Sequence[Outcome], second: Sequence[Outcome]) -> Difference | None:
    """Return how far two methods are apart on what both were measured on; None if on nothing."""
    units = pair([first, second])
    return None if units is None else units.compare(units.resample(), 0, 1)


def pair(methods: Sequence[Sequence[Outcome]]) -> Units | None:
    """Return the units that all methods share; None if they share none.

    Units are pairs of a domain and a seed; domains, if there is one seed or if the seed changes
    nothing for any of the methods; batches, if there is one domain besides. A method for which the
    seed changes nothing has the same errors for every seed.
    """
    tables = [{o.entry.spec.seed: domain_errors(o) for o in outcomes} for outcomes in methods]
    bound = [
        table for table, own in zip(tables, methods, strict=True) if not ignores_seed(own)
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
    kind = "domains" if grid.shape[1] == 1 else "domain × seed pairs"
    return Units(kind, grid, np.ones(len(domains)))


def _pair_batches(methods: Sequence[Sequence[Outcome]], domain: str) -> Units | None:
    """Return the batches of a domain; None if no seed is shared, as it may decide their order."""
    by_seed = [{own.entry.spec.seed: own for own in outcomes} for outcomes in methods]
    shared = set.intersection(*map(set, by_seed))
    if not shared:
        return None
    batches = [_count_batches(own[min(shared)], domain) for own in by_seed]
    sizes = [{index: n for index, (n, _) in own.items()} for own in batches]
    if any(own != sizes[0] for own in sizes) or len(sizes[0]) < 2:
        return None
    weights = np.array(list(sizes[0].values()), float)
    wrong = np.array([[[own[index][1] for index in sizes[0]]] for own in batches], float)
    return Units("batches", 100 * wrong / weights, weights)


def _count_batches(outcome: Outcome, domain: str) -> dict[int, tuple[int, int]]:
    """Return images and errors of the domain in each batch, by the batch's place in the stream."""
    counts = {record.index: record.by_domain for record in outcome.result.counted}
    return {index: own[domain] for index, own in counts.items() if domain in own}
