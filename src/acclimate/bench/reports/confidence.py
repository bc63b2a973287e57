"""How sure a few pairs can make anybody."""

from __future__ import annotations


def most_confidence(n_pairs: int) -> float:
    """Return the most confidence that so many pairs can give: 1 - 2^-n, that of the sign test.

    Few pairs agree easily by chance. Resamples do not see that: they draw from these few only.

    >>> most_confidence(1), most_confidence(3)
    (0.5, 0.875)
    """
    return 1 - 0.5**n_pairs


def cap_share(share: float, n_pairs: int) -> float:
    """Return a share of resamples, kept as far from 0 and from 1 as so many pairs demand.

    >>> cap_share(1.0, 2), cap_share(0.6, 2), cap_share(0.0, 2)
    (0.75, 0.6, 0.25)
    """
    most = most_confidence(n_pairs)
    return min(max(share, 1 - most), most)
