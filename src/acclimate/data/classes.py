"""Names of classes, for people."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 8


def shorten_classes(names: Sequence[str]) -> str:
    """Return how many classes there are, and the first names.

    >>> shorten_classes(["cat", "dog"]), shorten_classes("abcdefghij")
    ('2: cat, dog', '10: a, b, c, d, e, f, g, h, …')
    """
    more = ", …" if len(names) > _SHOWN else ""
    return f"{len(names):,}: {', '.join(names[:_SHOWN])}{more}"
