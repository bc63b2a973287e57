"""A bounded memory with as many samples of each predicted class as can be had."""

from __future__ import annotations

import torch


def choose_slot(
    kept: list[int], label: int, n_seen: int, size: int, generator: torch.Generator
) -> int | None:
    """Return the place of a new sample in a class-balanced memory; None: it is not kept.

    Args:
        kept: Predicted classes of what the memory holds.
        label: Predicted class of the new sample.
        n_seen: Samples of that class so far, this one counted.
        size: Of the memory.
        generator: Of the draws.
    """
    if len(kept) < size:
        return len(kept)
    members = {k: [place for place, other in enumerate(kept) if other == k] for k in {*kept, label}}
    most = max(map(len, members.values()))
    largest = sorted(k for k, places in members.items() if len(places) == most)
    if label not in largest:
        places = members[largest[_draw(len(largest), generator)]]
    else:
        # So every sample of the class has had the same chance to be here.
        places = members[label]
        if float(torch.rand((), generator=generator)) > len(places) / n_seen:
            return None
    return places[_draw(len(places), generator)]


def _draw(n: int, generator: torch.Generator) -> int:
    return int(torch.randint(n, (), generator=generator))
