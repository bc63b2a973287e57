"""A bounded memory that is balanced over predicted classes."""

from __future__ import annotations

import torch


def choose_slot(
    kept: list[int], label: int, n_seen: int, size: int, generator: torch.Generator
) -> int | None:
    """Return the slot of a new sample in a class-balanced memory; None if it is not stored.

    Args:
        kept: Predicted classes of the samples in the memory.
        label: Predicted class of the new sample.
        n_seen: Number of samples of that class so far, including this one.
        size: Size of the memory.
        generator: Random number generator.
    """
    if len(kept) < size:
        return len(kept)
    members = {k: [place for place, other in enumerate(kept) if other == k] for k in {*kept, label}}
    most = max(map(len, members.values()))
    largest = sorted(k for k, places in members.items() if len(places) == most)
    if label not in largest:
        places = members[largest[_draw(len(largest), generator)]]
    else:
        # Every sample of the class has had the same chance to be in the memory.
        places = members[label]
        if float(torch.rand((), generator=generator)) > len(places) / n_seen:
            return None
    return places[_draw(len(places), generator)]


def _draw(n: int, generator: torch.Generator) -> int:
    return int(torch.randint(n, (), generator=generator))
