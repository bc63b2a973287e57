"""k-means of numbers on a line, exact: the one grouping with the least squared distances.

On a line the groups are intervals, so that dynamic programming finds the best ones. Where a group
begins grows with where it ends, hence each round takes n log n steps (divide and conquer).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
_Indices = npt.NDArray[np.int64]
_Cost = Callable[[_Indices, _Indices], Values]


def cluster_line(values: Values, k: int) -> _Indices:
    """Return the group of each number, 0 for the smallest numbers; equal numbers share a group.

    Args:
        values: Any numbers, (n,).
        k: How many groups; fewer if there are fewer different numbers.

    >>> cluster_line(np.array([5.0, 0.1, 9.0, 0.2, 5.1]), 3).tolist()
    [1, 0, 2, 0, 1]
    """
    ordered = np.sort(values)
    k = min(k, len(np.unique(ordered)))
    starts = _find_starts(ordered, k)
    return np.searchsorted(ordered[starts[1:]], values, side="right").astype(np.int64)


def _find_starts(ordered: Values, k: int) -> list[int]:
    """Return where each of the best groups begins among sorted numbers."""
    n = len(ordered)
    # Centred and scaled: sums of squares of tiny numbers far from zero would lose their digits.
    scaled = (ordered - ordered.mean()) / (ordered.std() or 1.0)
    sums = np.concatenate([[0.0], np.cumsum(scaled)])
    squares = np.concatenate([[0.0], np.cumsum(scaled**2)])

    def cost(first: _Indices, end: _Indices) -> Values:
        total = sums[end] - sums[first]
        spread: Values = squares[end] - squares[first] - total**2 / (end - first)
        return spread

    ends = np.arange(1, n + 1)
    best = np.concatenate([[0.0], cost(np.zeros(n, np.int64), ends)])
    choices = []
    for n_groups in range(2, k + 1):
        best, chosen = _add_group(best, n_groups, n, cost)
        choices.append(chosen)
    starts, end = [], n
    for chosen in reversed(choices):
        end = int(chosen[end])
        starts.append(end)
    return [0, *reversed(starts)]


def _add_group(best: Values, n_groups: int, n: int, cost: _Cost) -> tuple[Values, _Indices]:
    """Return the least costs with one group more, by where it ends, and where it begins then."""
    found, chosen = np.full(n + 1, np.inf), np.zeros(n + 1, np.int64)
    # All intervals of ends of one level are worked on at once: low and high end, and the first and
    # last start that can be best for them.
    parts = np.array([[n_groups, n, n_groups - 1, n - 1]], np.int64)
    while len(parts):
        low, high, first, last = parts.T
        middle = (low + high) // 2
        counts = np.minimum(last, middle - 1) - first + 1
        offsets = np.concatenate([[0], np.cumsum(counts)[:-1]])
        starts = np.arange(counts.sum()) - np.repeat(offsets - first, counts)
        ends = np.repeat(middle, counts)
        values = best[starts] + cost(starts, ends)
        least = np.minimum.reduceat(values, offsets)
        hits = np.flatnonzero(values == np.repeat(least, counts))
        picked = starts[hits[np.searchsorted(hits, offsets)]]
        found[middle], chosen[middle] = least, picked
        left = np.stack([low, middle - 1, first, picked], axis=1)[low < middle]
        right = np.stack([middle + 1, high, picked, last], axis=1)[middle < high]
        parts = np.concatenate([left, right])
    return found, chosen
