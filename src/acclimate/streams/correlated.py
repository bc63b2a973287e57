"""Scenarios whose labels are correlated in time: pure functions from domains to a stream.

All of them need one class per sample, and refuse domains of masks when they are iterated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from acclimate.errors import BadInput, refuse_value
from acclimate.streams.batch import Batch, Domain, Stream
from acclimate.streams.cutting import check, cut, describe, gather, recycle, seed_from, shuffled

# Batches of a class in `one_class` if nothing is given, unless the class has fewer.
_LONGEST_RUN = 100


def label_sorted(domains: Sequence[Domain], batch_size: int = 200, seed: int = 0) -> Stream:
    """Return a continual stream whose domains are sorted by label, and shuffled within a label."""
    check(domains, batch_size)

    def order_of(number: int, labels: Tensor) -> Tensor:
        order = shuffled(len(labels), seed)
        return order[torch.argsort(labels[order], stable=True)]

    return _ordered("continual, sorted by label, no reset", domains, order_of, batch_size, seed)


def dirichlet(
    domains: Sequence[Domain], delta: float = 0.1, batch_size: int = 64, seed: int = 0
) -> Stream:
    """Return a continual stream with labels that are correlated in time.

    Time is divided into min(classes, 100) slots; the samples of each class are distributed over
    them with shares from a Dirichlet distribution. A smaller `delta` gives a stronger correlation.
    """
    check(domains, batch_size)
    if not 0 < delta < math.inf:
        refuse_value("delta", delta, "positive and finite")

    def order_of(number: int, labels: Tensor) -> Tensor:
        return _dirichlet_order(labels, delta, seed + number)

    name = f"continual, Dirichlet({delta:g}) labels, no reset"
    return _ordered(name, domains, order_of, batch_size, seed)


def imbalanced(
    domains: Sequence[Domain], ratio: float = 100.0, batch_size: int = 64, seed: int = 0
) -> Stream:
    """Return a continual stream in which one class after the other dominates.

    A domain has one phase per class. In its phase, a class is `ratio` times as likely to be drawn
    as any other; every sample occurs once.
    """
    check(domains, batch_size)
    if not 1 <= ratio < math.inf:
        refuse_value("ratio", ratio, "at least 1, and finite")

    def order_of(number: int, labels: Tensor) -> Tensor:
        return _imbalanced_order(labels, ratio, seed + number)

    name = f"continual, label shift of ratio {ratio:g}, no reset"
    return _ordered(name, domains, order_of, batch_size, seed)


def _ordered(
    name: str,
    domains: Sequence[Domain],
    order_of: Callable[[int, Tensor], Tensor],
    batch_size: int,
    seed: int,
) -> Stream:
    """Return a stream of the domains one after the other, each in the order of its labels."""

    def make() -> Iterator[Batch]:
        for number, domain in enumerate(domains):
            order = order_of(number, domain.labels)
            yield from cut(domain, order, batch_size, number == 0)

    return Stream(describe(name, domains, batch_size, seed), make)


def one_class(
    domains: Sequence[Domain],
    n_batches: int | None = None,
    n_classes: int | None = None,
    batch_size: int = 64,
    seed: int = 0,
) -> Stream:
    """Return a continual stream in which many batches in a row have a single class.

    In every domain, one class after the other comes, in random order.

    Args:
        domains: The domains in order.
        n_batches: Number of full batches of a class in a row. If the class has fewer samples, they
            are recycled in a new random order. None for 100 batches or the whole class, whichever
            is less; then no sample occurs twice, and the last batch of a class may be smaller.
        n_classes: Number of classes that come in each domain, chosen by the seed; None for all.
        batch_size: Batch size.
        seed: Seed of the order of classes and samples.
    """
    check(domains, batch_size, n_batches=n_batches, n_classes=n_classes)

    def make() -> Iterator[Batch]:
        first = True
        for number, domain in enumerate(domains):
            labels = domain.labels
            generator = seed_from(seed, number, 1)
            for label, n in class_runs(labels, n_batches, n_classes, batch_size, seed, number):
                members = (labels == label).nonzero().flatten()
                yield from cut(domain, recycle(members, n, generator), batch_size, first)
                first = False

    run = f"{n_batches} batches in a row" if n_batches else "up to 100 batches in a row"
    recycled = ", samples recycled" if n_batches else ""
    chosen = "" if n_classes is None else f", {n_classes} of the classes"
    name = f"continual, one class for {run}{recycled}{chosen}, no reset"
    return Stream(describe(name, domains, batch_size, seed), make)


def class_runs(
    labels: Tensor,
    n_batches: int | None,
    n_classes: int | None,
    batch_size: int,
    seed: int,
    number: int,
) -> list[tuple[int, int]]:
    """Return the classes of a domain in the order of `one_class`, and their numbers of samples.

    `number` is the position of the domain in the stream.
    """
    classes = sorted(set(labels.tolist()))
    order = torch.randperm(len(classes), generator=seed_from(seed, number))[:n_classes]
    longest = (n_batches or _LONGEST_RUN) * batch_size
    chosen = [classes[place] for place in order.tolist()]
    if n_batches:
        return [(label, longest) for label in chosen]
    return [(label, min(longest, int((labels == label).sum()))) for label in chosen]


def markov(
    domains: Sequence[Domain],
    n: int | None = None,
    domain_correlation: float = 0.85,
    class_correlation: float = 0.95,
    domain_ratio: float = 1.0,
    class_ratio: float = 1.0,
    batch_size: int = 64,
    seed: int = 0,
) -> Stream:
    """Return the stream of a Markov chain over domains and classes, as in UniTTA.

    The domain of the next sample is that of the last one with the probability
    `domain_correlation`, and otherwise any other with equal probability. Its class follows in the
    same way and independently. 1 / (number of domains or classes) means no correlation; at 1, all
    samples of a domain or class come in a row.

    With a ratio above 1, the first domain or class is `ratio` times as frequent as the last one,
    and those between decrease geometrically. The correlation is then that of the most frequent
    one; the others are left sooner. Where that would need a negative correlation, all have the same
    one, and each comes until its share of the samples is used up.

    Paper: https://arxiv.org/abs/2407.20080

    The stream has `n` samples, or as many as the domains have together. It cannot be iterated if a
    domain lacks a class of the others.
    """
    check(domains, batch_size, n=n)
    check_markov(domain_correlation, class_correlation, domain_ratio, class_ratio)
    length = sum(map(len, domains)) if n is None else n

    def make() -> Iterator[Batch]:
        labels = [domain.labels for domain in domains]
        classes = sorted(set(torch.cat(labels).tolist()))
        pools = _find_pools(domains, labels, classes)
        generator = seed_from(seed)
        which = draw_chain(length, len(domains), domain_correlation, domain_ratio, generator)
        kinds = draw_chain(length, len(classes), class_correlation, class_ratio, generator)
        sample = torch.empty_like(which)
        for number, own in enumerate(pools):
            for kind, members in enumerate(own):
                places = ((which == number) & (kinds == kind)).nonzero().flatten()
                sample[places] = recycle(members, len(places), generator)
        yield from gather(domains, (which, sample), batch_size)

    name = (
        f"Markov chain, {length} samples recycled, domain stays with {domain_correlation:g} "
        f"(imbalance {domain_ratio:g}), class with {class_correlation:g} "
        f"(imbalance {class_ratio:g}), no reset"
    )
    return Stream(describe(name, domains, batch_size, seed), make)


def check_markov(
    domain_correlation: float, class_correlation: float, domain_ratio: float, class_ratio: float
) -> None:
    """Refuse correlations outside of [0, 1] and ratios below 1."""
    for name, value in (
        ("domain_correlation", domain_correlation),
        ("class_correlation", class_correlation),
    ):
        if not 0 <= value <= 1:
            refuse_value(name, value, "a probability from 0 to 1")
    for name, value in (("domain_ratio", domain_ratio), ("class_ratio", class_ratio)):
        if not 1 <= value < math.inf:
            refuse_value(name, value, "at least 1, and finite")


def draw_chain(
    length: int, n_states: int, correlation: float, ratio: float, generator: torch.Generator
) -> Tensor:
    """Draw the states of a Markov chain with given stationary frequencies.

    Let s be `correlation`. State i stays with the probability 1 - (1 - s) * ratio^(i / (n - 1)),
    and changes to every other state with equal probability. Then its frequency is proportional to
    ratio^(-i / (n - 1)). If the last state would stay less often than by chance, or if s is 1, all
    states stay with the probability s, and a state whose share of the samples is used up does not
    come again.
    """
    if n_states == 1:
        return torch.zeros(length, dtype=torch.int64)
    rises = ratio ** (torch.arange(n_states, dtype=torch.float64) / (n_states - 1))
    shares = (1 / rises) / (1 / rises).sum()
    leaves = ((1 - correlation) * rises).tolist()
    has_quotas = correlation == 1 or leaves[-1] > 1 - 1 / n_states + 1e-12
    if has_quotas:
        leaves = [1 - correlation] * n_states
    left = _divide(length, shares) if has_quotas else [length] * n_states
    draws = torch.rand(2, length, generator=generator, dtype=torch.float64).tolist()
    state = int(torch.multinomial(shares, 1, generator=generator))
    if left[state] == 0:
        state = left.index(max(left))
    states: list[int] = []
    for stay, choice in zip(*draws, strict=True):
        if states and (stay < leaves[state] or left[state] == 0):
            others = [i for i in range(n_states) if i != state and left[i] > 0]
            state = others[int(choice * len(others))] if others else state
        states.append(state)
        left[state] -= 1
    return torch.tensor(states)


def _divide(length: int, shares: Tensor) -> list[int]:
    """Return whole numbers with the sum `length` and in proportion to the shares."""
    exact = shares * length
    counts = exact.floor().long()
    largest = (exact - counts).argsort(descending=True, stable=True)
    counts[largest[: length - int(counts.sum())]] += 1
    return [int(count) for count in counts]


def _find_pools(
    domains: Sequence[Domain], labels: Sequence[Tensor], classes: Sequence[int]
) -> list[list[Tensor]]:
    """Return the samples of each domain and class."""
    pools = [[(own == k).nonzero().flatten() for k in classes] for own in labels]
    for domain, own in zip(domains, pools, strict=True):
        missing = [k for k, members in zip(classes, own, strict=True) if len(members) == 0]
        if missing:
            shown = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
            text = (
                f"Domain {domain.name}: Expected samples of every class that the other domains "
                f"have, found none of {shown}. Use more samples of each domain."
            )
            raise BadInput("missing_classes", text, missing=tuple(missing))
    return pools


def _dirichlet_order(labels: Tensor, delta: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    classes = sorted(set(labels.tolist()))
    n_slots = min(len(classes), 100)
    slots: list[list[Tensor]] = [[] for _ in range(n_slots)]
    for label in classes:
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        shares = _draw_shares(n_slots, delta, generator)
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


def _draw_shares(n: int, delta: float, generator: torch.Generator) -> Tensor:
    """Return shares from a symmetric Dirichlet distribution.

    They are Gamma variates divided by their sum. If delta is small, Gamma(delta) variates are too
    small for floating point numbers, so that their logarithms are drawn: if G ~ Gamma(delta + 1)
    and U is uniform, then log G + log(U) / delta is the logarithm of a Gamma(delta) variate.
    """
    gamma = torch._standard_gamma(torch.full((n,), delta + 1).double(), generator=generator)
    uniform = torch.rand(n, generator=generator, dtype=torch.float64).clamp_min(1e-300)
    # Divided by delta after the subtraction, so that the largest one stays finite.
    logs = delta * gamma.log() + uniform.log()
    return ((logs - logs.max()) / delta).softmax(dim=0)


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
