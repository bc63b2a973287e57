"""What scenarios share: the check of their arguments, their line, orders, and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from acclimate.errors import BadInput, check_at_least
from acclimate.streams.batch import Batch, Domain

#: Positions in a list of domains: indices of domains, and of samples within them.
Order = tuple[Tensor, Tensor]


def check(domains: Sequence[Domain], batch_size: int, **counts: int | None) -> None:
    """Refuse empty domains, and a batch size or other counts below 1; None is not checked."""
    for name, value in {"batch_size": batch_size, **counts}.items():
        if value is not None:
            check_at_least(name, value, 1)
    empty = [domain.name for domain in domains if len(domain) == 0]
    if not domains or empty:
        where = f" in {', '.join(empty)}" if empty else ""
        text = f"Expected domains with samples, found none{where}. Pass at least one domain, and "
        raise BadInput("empty_source", text + "no empty ones.")


def describe(name: str, domains: Sequence[Domain], batch_size: int, seed: int | None) -> str:
    """Return the protocol in one line."""
    counts = [len(domain) for domain in domains]
    n = f"{counts[0]} samples each" if len(set(counts)) == 1 else f"{sum(counts)} samples in all"
    order = "own order" if seed is None else f"order by seed {seed}"
    kinds = "domain" if len(domains) == 1 else "domains"
    return f"{name}; {len(domains)} {kinds}, {n}; {order}; batches of {batch_size}"


def shuffled(n: int, seed: int | None) -> Tensor:
    """Return the numbers below `n` in random order; None keeps their own order."""
    if seed is None:
        return torch.arange(n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def recycle(members: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Return `n` of the members: all in random order, or their own, then all again, and so on."""
    rounds = -(-n // len(members))
    if generator is None:
        return members.repeat(rounds)[:n]
    orders = [torch.randperm(len(members), generator=generator) for _ in range(rounds)]
    return members[torch.cat(orders)[:n]] if orders else members[:0]


def seed_from(*numbers: int) -> torch.Generator:
    """Return a generator whose draws are independent for different numbers."""
    words = [number % 2**64 for number in numbers]
    state = np.random.SeedSequence(words).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


def cut(domain: Domain, order: Tensor, batch_size: int, reset_first: bool) -> Iterator[Batch]:
    """Yield the samples of one domain in this order."""
    for index, part in enumerate(torch.split(order, batch_size)):
        x, y = domain.take(part)
        yield Batch(x, y, domain.name, reset=reset_first and index == 0)


def gather(domains: Sequence[Domain], order: Order, batch_size: int) -> Iterator[Batch]:
    """Yield batches in an order over several domains, with the domain of each sample."""
    which, sample = order
    for start in range(0, len(which), batch_size):
        part = slice(start, start + batch_size)
        owners, inside = which[part], sample[part]
        x: Tensor | None = None
        y: Tensor | None = None
        for number in sorted(set(owners.tolist())):
            places = (owners == number).nonzero().flatten()
            own_x, own_y = domains[number].take(inside[places])
            if x is None or y is None:
                x = own_x.new_empty(len(owners), *own_x.shape[1:])
                y = own_y.new_empty(len(owners), *own_y.shape[1:])
            x[places], y[places] = own_x, own_y
        if x is not None and y is not None:
            names = tuple(domains[number].name for number in owners.tolist())
            yield Batch(x, y, "mixed", reset=start == 0, domains=names)
