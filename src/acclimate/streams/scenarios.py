"""Scenarios: pure functions from domains to a stream of batches.

All of them are reproducible from a seed, and each describes its protocol in one line. A custom
stream is any iterable of `Batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from acclimate.errors import BadInput
from acclimate.streams.batch import Batch, Domain, Stream

#: Positions in a list of domains: indices of domains, and of samples within them.
Order = tuple[Tensor, Tensor]


def reset_each(domains: Sequence[Domain], batch_size: int = 200, seed: int | None = None) -> Stream:
    """Return every domain in turn, with a reset before its first batch.

    Args:
        domains: The domains in order.
        batch_size: Batch size; the last batch of a domain may be smaller.
        seed: Seed of the order of samples within a domain; None keeps their own order.
    """
    _check(domains, batch_size)

    def make() -> Iterator[Batch]:
        for domain in domains:
            yield from _cut(domain, _shuffled(len(domain), seed), batch_size, reset_first=True)

    return Stream(_line("reset before each domain", domains, batch_size, seed), make)


def continual(
    domains: Sequence[Domain], batch_size: int = 200, seed: int | None = None, times: int = 1
) -> Stream:
    """Return every domain in turn without resets, repeated `times` times."""
    _check(domains, batch_size, times=times)

    def make() -> Iterator[Batch]:
        first = True
        for _ in range(times):
            for domain in domains:
                yield from _cut(domain, _shuffled(len(domain), seed), batch_size, first)
                first = False

    name = "continual, no reset" if times == 1 else f"recurring {times} times, no reset"
    return Stream(_line(name, domains, batch_size, seed), make)


def recurring(
    domains: Sequence[Domain], times: int, batch_size: int = 200, seed: int | None = None
) -> Stream:
    """Return the cycle of all domains several times without resets."""
    return continual(domains, batch_size, seed, times)


def gradual(
    severities: Mapping[str, Sequence[Domain]], batch_size: int = 200, seed: int | None = None
) -> Stream:
    """Return every corruption with its severity rising from lowest to highest and falling again.

    Args:
        severities: The domains of each corruption, from mild to severe.
        batch_size: Batch size.
        seed: Seed of the order of samples within a domain.
    """
    climbs = [
        domain for domains in severities.values() for domain in [*domains, *list(domains)[-2::-1]]
    ]
    stream = continual(climbs, batch_size, seed)
    levels = len(next(iter(severities.values()), ()))
    name = f"gradual, severities 1…{levels}…1, no reset"
    flat = [domain for domains in severities.values() for domain in domains]
    return Stream(_line(name, flat, batch_size, seed), stream.make)


def mixed(domains: Sequence[Domain], batch_size: int = 200, seed: int = 0) -> Stream:
    """Return all samples of all domains shuffled; a batch contains several domains."""
    _check(domains, batch_size)

    def make() -> Iterator[Batch]:
        which = torch.cat([torch.full((len(d),), i) for i, d in enumerate(domains)])
        sample = torch.cat([torch.arange(len(d)) for d in domains])
        order = torch.randperm(len(which), generator=torch.Generator().manual_seed(seed))
        yield from _gather(domains, (which[order], sample[order]), batch_size)

    return Stream(_line("mixed domains, no reset", domains, batch_size, seed), make)


def label_sorted(domains: Sequence[Domain], batch_size: int = 200, seed: int = 0) -> Stream:
    """Return a continual stream whose domains are sorted by label, and shuffled within a label."""
    _check(domains, batch_size)

    def make() -> Iterator[Batch]:
        for number, domain in enumerate(domains):
            order = _shuffled(len(domain), seed)
            order = order[torch.argsort(domain.labels[order], stable=True)]
            yield from _cut(domain, order, batch_size, number == 0)

    return Stream(_line("continual, sorted by label, no reset", domains, batch_size, seed), make)


def dirichlet(
    domains: Sequence[Domain], delta: float = 0.1, batch_size: int = 64, seed: int = 0
) -> Stream:
    """Return a continual stream with labels that are correlated in time.

    Time is divided into min(classes, 100) slots; the samples of each class are distributed over
    them with shares from a Dirichlet distribution. A smaller `delta` gives a stronger correlation.
    """
    _check(domains, batch_size)
    if delta <= 0:
        raise BadInput(
            "out_of_range",
            f"Expected a positive concentration, found {delta}.",
            option="delta",
            found=delta,
        )

    def make() -> Iterator[Batch]:
        for number, domain in enumerate(domains):
            order = _dirichlet_order(domain.labels, delta, seed + number)
            yield from _cut(domain, order, batch_size, number == 0)

    name = f"continual, Dirichlet({delta:g}) labels, no reset"
    return Stream(_line(name, domains, batch_size, seed), make)


def imbalanced(
    domains: Sequence[Domain], ratio: float = 100.0, batch_size: int = 64, seed: int = 0
) -> Stream:
    """Return a continual stream in which one class after the other dominates.

    A domain has one phase per class. In its phase, a class is `ratio` times as likely to be drawn
    as any other; every sample occurs once.
    """
    _check(domains, batch_size)
    if ratio < 1:
        raise BadInput(
            "out_of_range",
            f"Expected an imbalance ratio of at least 1, found {ratio}.",
            option="ratio",
            found=ratio,
        )

    def make() -> Iterator[Batch]:
        for number, domain in enumerate(domains):
            order = _imbalanced_order(domain.labels, ratio, seed + number)
            yield from _cut(domain, order, batch_size, number == 0)

    name = f"continual, label shift of ratio {ratio:g}, no reset"
    return Stream(_line(name, domains, batch_size, seed), make)


def source_mixture(
    domains: Sequence[Domain],
    clean: Domain,
    share: float,
    batch_size: int = 200,
    seed: int = 0,
) -> Stream:
    """Return a continual stream with a share of clean samples in every batch.

    The clean samples are shuffled separately for every domain.
    """
    _check(domains, batch_size)
    n_clean = round(share * batch_size)
    if not 0 < n_clean < batch_size:
        raise BadInput(
            "out_of_range",
            f"Expected a share between 0 and 1 that gives at least one clean and one other sample "
            f"of {batch_size}, found {share}.",
            option="share",
            found=share,
        )

    def make() -> Iterator[Batch]:
        for number, domain in enumerate(domains):
            order = _shuffled(len(domain), seed)
            spare = _shuffled(len(clean), seed + number)
            for index, part in enumerate(torch.split(order, batch_size - n_clean)):
                own = spare[torch.arange(index * n_clean, (index + 1) * n_clean) % len(spare)]
                which = torch.cat([torch.zeros(len(part)), torch.ones(len(own))]).long()
                sample = torch.cat([part, own])
                mixing = torch.Generator().manual_seed(seed + 7919 * (number + 1) + index)
                shuffle = torch.randperm(len(which), generator=mixing)
                pair = [domain, clean]
                batch = next(_gather(pair, (which[shuffle], sample[shuffle]), len(which)))
                first = number == 0 and index == 0
                yield Batch(batch.x, batch.y, domain.name, first, domains=batch.domains)

    name = f"continual, {100 * share:.0f} % clean samples in each batch, no reset"
    return Stream(_line(name, domains, batch_size, seed), make)


def _check(domains: Sequence[Domain], batch_size: int, times: int = 1) -> None:
    if batch_size < 1:
        raise BadInput(
            "out_of_range",
            f"Expected a batch size of at least 1, found {batch_size}.",
            option="batch_size",
            found=batch_size,
        )
    if times < 1:
        raise BadInput(
            "out_of_range",
            f"Expected at least 1 round, found {times}.",
            option="times",
            found=times,
        )
    empty = [domain.name for domain in domains if len(domain) == 0]
    if not domains or empty:
        raise BadInput(
            "empty_source",
            f"Expected domains with samples, found none{' in ' if empty else ''}"
            f"{', '.join(empty)}. Pass at least one domain, and no empty ones.",
        )


def _line(name: str, domains: Sequence[Domain], batch_size: int, seed: int | None) -> str:
    counts = {len(domain) for domain in domains}
    n = (
        f"{counts.pop()} samples each"
        if len(counts) == 1
        else (f"{sum(len(domain) for domain in domains)} samples in all")
    )
    order = "own order" if seed is None else f"order by seed {seed}"
    kinds = "domain" if len(domains) == 1 else "domains"
    return f"{name}; {len(domains)} {kinds}, {n}; {order}; batches of {batch_size}"


def _shuffled(n: int, seed: int | None) -> Tensor:
    if seed is None:
        return torch.arange(n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def _cut(domain: Domain, order: Tensor, batch_size: int, reset_first: bool) -> Iterator[Batch]:
    for index, part in enumerate(torch.split(order, batch_size)):
        x, y = domain.take(part)
        yield Batch(x, y, domain.name, reset=reset_first and index == 0)


def _gather(domains: Sequence[Domain], order: Order, batch_size: int) -> Iterator[Batch]:
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


def _dirichlet_order(labels: Tensor, delta: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    classes = sorted(set(labels.tolist()))
    n_slots = min(len(classes), 100)
    slots: list[list[Tensor]] = [[] for _ in range(n_slots)]
    for label in classes:
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        # Shares from Gamma variates, because torch's Dirichlet does not accept a generator.
        gamma = torch._standard_gamma(torch.full((n_slots,), delta).double(), generator=generator)
        shares = gamma / gamma.sum() if gamma.sum() > 0 else torch.full_like(gamma, 1 / n_slots)
        ends = (shares.cumsum(0) * len(members)).round().long().clamp(max=len(members))
        ends[-1] = len(members)
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        for slot, start, end in zip(slots, starts.tolist(), ends.tolist(), strict=True):
            slot.append(members[start:end])
    ordered = []
    for slot in slots:
        together = torch.cat(slot)
        ordered.append(together[torch.randperm(len(together), generator=generator)])
    return torch.cat(ordered)


def _imbalanced_order(labels: Tensor, ratio: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    classes = sorted(set(labels.tolist()))
    left = torch.ones(len(labels), dtype=torch.bool)
    phases = torch.tensor_split(torch.arange(len(labels)), len(classes))
    ordered = []
    for label, phase in zip(classes, phases, strict=True):
        weights = torch.where(labels == label, ratio, 1.0).double()
        # Weighted sampling without replacement: the smallest exponential keys are chosen.
        uniform = torch.rand(len(labels), generator=generator, dtype=torch.float64)
        keys = torch.where(left, -uniform.clamp_min(1e-300).log() / weights, torch.inf)
        chosen = keys.argsort()[: len(phase)]
        left[chosen] = False
        ordered.append(chosen[torch.randperm(len(chosen), generator=generator)])
    return torch.cat(ordered)
