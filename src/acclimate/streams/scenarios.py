"""Scenarios: pure functions from domains to a stream of batches.

All of them are reproducible from a seed, and each describes its protocol in one line. A custom
stream is any iterable of `Batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from acclimate.errors import BadInput, refuse_value
from acclimate.streams.batch import Batch, Domain, Stream
from acclimate.streams.cutting import check, cut, describe, gather, recycle, seed_from, shuffled

#: Label of foreign images. The losses of torch ignore it.
NO_LABEL = -100


def reset_each(domains: Sequence[Domain], batch_size: int = 200, seed: int | None = None) -> Stream:
    """Return every domain in turn, with a reset before its first batch.

    The last batch of a domain may be smaller. The seed is that of the order of samples within a
    domain, here and elsewhere; None keeps their own order.
    """
    check(domains, batch_size)

    def make() -> Iterator[Batch]:
        for domain in domains:
            yield from cut(domain, shuffled(len(domain), seed), batch_size, reset_first=True)

    return Stream(describe("reset before each domain", domains, batch_size, seed), make)


def continual(
    domains: Sequence[Domain], batch_size: int = 200, seed: int | None = None, times: int = 1
) -> Stream:
    """Return every domain in turn without resets, repeated `times` times."""
    check(domains, batch_size, times=times)

    def make() -> Iterator[Batch]:
        first = True
        for _ in range(times):
            for domain in domains:
                yield from cut(domain, shuffled(len(domain), seed), batch_size, first)
                first = False

    name = "continual, no reset" if times == 1 else f"recurring {times} times, no reset"
    return Stream(describe(name, domains, batch_size, seed), make)


def recurring(
    domains: Sequence[Domain], times: int = 20, batch_size: int = 200, seed: int | None = None
) -> Stream:
    """Return the cycle of all domains several times without resets."""
    return continual(domains, batch_size, seed, times)


def gradual(
    severities: Mapping[str, Sequence[Domain]], batch_size: int = 200, seed: int | None = None
) -> Stream:
    """Return every corruption with its severity rising from lowest to highest and falling again.

    `severities` are the domains of each corruption, from mild to severe.
    """
    climbs = [
        domain for domains in severities.values() for domain in [*domains, *list(domains)[-2::-1]]
    ]
    stream = continual(climbs, batch_size, seed)
    levels = len(next(iter(severities.values()), ()))
    name = f"gradual, severities 1…{levels}…1, no reset"
    flat = [domain for domains in severities.values() for domain in domains]
    return Stream(describe(name, flat, batch_size, seed), stream.make)


def mixed(domains: Sequence[Domain], batch_size: int = 200, seed: int = 0) -> Stream:
    """Return all samples of all domains shuffled; a batch contains several domains."""
    check(domains, batch_size)

    def make() -> Iterator[Batch]:
        which = torch.cat([torch.full((len(d),), i) for i, d in enumerate(domains)])
        sample = torch.cat([torch.arange(len(d)) for d in domains])
        order = torch.randperm(len(which), generator=torch.Generator().manual_seed(seed))
        yield from gather(domains, (which[order], sample[order]), batch_size)

    return Stream(describe("mixed domains, no reset", domains, batch_size, seed), make)


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
    check(domains, batch_size)
    n_clean = round(share * batch_size)
    if not 0 < n_clean < batch_size:
        expected = f"such that there are clean and other samples in a batch of {batch_size}"
        refuse_value("share", share, expected)

    def make() -> Iterator[Batch]:
        for number, domain in enumerate(domains):
            order = shuffled(len(domain), seed)
            spare = shuffled(len(clean), seed + number)
            for index, part in enumerate(torch.split(order, batch_size - n_clean)):
                own = spare[torch.arange(index * n_clean, (index + 1) * n_clean) % len(spare)]
                which = torch.cat([torch.zeros(len(part)), torch.ones(len(own))]).long()
                sample = torch.cat([part, own])
                mixing = torch.Generator().manual_seed(seed + 7919 * (number + 1) + index)
                shuffle = torch.randperm(len(which), generator=mixing)
                pair = [domain, clean]
                batch = next(gather(pair, (which[shuffle], sample[shuffle]), len(which)))
                first = number == 0 and index == 0
                yield Batch(batch.x, batch.y, domain.name, first, domains=batch.domains)

    name = f"continual, {100 * share:.0f} % clean samples in each batch, no reset"
    return Stream(describe(name, domains, batch_size, seed), make)


def single_images(domains: Sequence[Domain], seed: int | None = 0) -> Stream:
    """Return every domain in turn in batches of one image, with a reset before each domain."""
    check(domains, 1)
    name = "single images, reset before each domain"
    return Stream(describe(name, domains, 1, seed), reset_each(domains, 1, seed).make)


def alternating(
    domains: Sequence[Domain],
    clean: Domain,
    period: int = 1,
    batch_size: int = 200,
    seed: int | None = None,
) -> Stream:
    """Return a continual stream in which clean and corrupted batches come in turns.

    Before every `period` batches of a domain come as many clean batches. Every sample of a domain
    occurs once. Clean samples are recycled, in a new order if there is a seed. Both count, each
    under its own name.
    """
    check([*domains, clean], batch_size, period=period)
    check(domains, batch_size)
    if clean.name in [domain.name for domain in domains]:
        text = f"Expected domains other than the clean images, found {clean.name} as both. Use "
        raise BadInput("duplicate", text + "corrupted data.", name=clean.name)

    def make() -> Iterator[Batch]:
        n_batches = sum(-(-len(domain) // batch_size) for domain in domains)
        generator = None if seed is None else seed_from(seed, 1)
        spare = recycle(torch.arange(len(clean)), n_batches * batch_size, generator)
        start, first = 0, True
        for domain in domains:
            order = shuffled(len(domain), seed)
            for part in torch.split(order, period * batch_size):
                end = start + -(-len(part) // batch_size) * batch_size
                yield from cut(clean, spare[start:end], batch_size, first)
                yield from cut(domain, part, batch_size, False)
                start, first = end, False

    turns = "every batch" if period == 1 else f"every {period} batches"
    name = f"continual, {clean.name} and corrupted in turns, changing after {turns}, no reset"
    return Stream(describe(name, domains, batch_size, seed), make)


def foreign(
    domains: Sequence[Domain],
    share: float = 0.1,
    batch_size: int = 200,
    seed: int = 0,
    other: Domain | None = None,
) -> Stream:
    """Return a continual stream with a share of foreign images in every batch.

    Foreign images belong to no class. They are predicted and learned from, but they do not count:
    see `Batch.counted`. Every sample of a domain occurs once.

    Args:
        domains: The domains in order.
        share: Share of foreign images in a full batch.
        batch_size: Batch size, with the foreign images.
        seed: Seed of the order and of the noise.
        other: Where foreign images come from, in random order and recycled; their labels are not
            used. None for uniform noise in the range of values of the domain.
    """
    check(domains if other is None else [*domains, other], batch_size)
    n_foreign = count_foreign(share, batch_size)
    if other is not None:
        _check_shapes(domains, other)

    def make() -> Iterator[Batch]:
        for number, domain in enumerate(domains):
            parts = torch.split(shuffled(len(domain), seed), batch_size - n_foreign)
            generator = seed_from(seed, number)
            supply = _foreign_images(domain, other, [n_foreign] * len(parts), generator)
            for index, (part, added) in enumerate(zip(parts, supply, strict=True)):
                x, y = domain.take(part)
                x = torch.cat([x, added.to(x.dtype)])
                y = torch.cat([y, y.new_full((n_foreign, *y.shape[1:]), NO_LABEL)])
                order = torch.randperm(len(x), generator=generator)
                first = number == 0 and index == 0
                counted = order < len(part)
                yield Batch(x[order], y[order], domain.name, first, counted=counted)

    what = "uniform noise" if other is None else other.name
    name = f"continual, {100 * share:.3g} % foreign images ({what}) in each batch, not counted"
    return Stream(describe(f"{name}, no reset", domains, batch_size, seed), make)


def count_foreign(share: float, batch_size: int) -> int:
    """Return the number of foreign images in a batch, or refuse none and the whole batch."""
    n_foreign = round(share * batch_size) if 0 < share < 1 else 0
    if not 0 < n_foreign < batch_size:
        expected = f"such that there are foreign and other samples in a batch of {batch_size}"
        refuse_value("share", share, expected)
    return n_foreign


def _foreign_images(
    domain: Domain, other: Domain | None, counts: Sequence[int], generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield so many foreign images for each batch of a domain."""
    if other is not None:
        order = recycle(torch.arange(len(other)), sum(counts), generator)
        for part in torch.split(order, list(counts)):
            yield other.take(part)[0]
        return
    low, high = domain.value_range()
    shape = domain.take(torch.zeros(1, dtype=torch.int64))[0].shape[1:]
    for n in counts:
        noise = torch.rand(n, *shape, generator=generator, dtype=torch.float64)
        yield noise * (high - low) + low


def _check_shapes(domains: Sequence[Domain], other: Domain) -> None:
    first = torch.zeros(1, dtype=torch.int64)
    found = tuple(other.take(first)[0].shape[1:])
    for domain in domains:
        expected = tuple(domain.take(first)[0].shape[1:])
        if found != expected:
            text = (
                f"Expected foreign images of the shape {expected}, that of {domain.name}, found "
                f"{found} in {other.name}. Resize them."
            )
            raise BadInput("wrong_shape", text, found=found)
