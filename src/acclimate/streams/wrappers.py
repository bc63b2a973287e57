"""Functions that build streams from other streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from operator import itemgetter

import torch
from torch import Tensor

from acclimate.errors import BadInput, check_at_least
from acclimate.streams.batch import Batch, Domain, Stream


def episodic(stream: Stream) -> Stream:
    """Return the same stream with a reset before every batch."""

    def make() -> Iterator[Batch]:
        for batch in stream:
            yield dataclasses.replace(batch, reset=True)

    return Stream(f"episodic: reset before each batch; {stream.protocol}", make)


def epochs(stream: Stream, times: int) -> Stream:
    """Return the same stream several times, without resets between the passes of a domain.

    Each domain is repeated before the next one starts, so that resets between domains stay in
    place. The error of pass k is that of the batches whose `epoch` is k. No domain is kept in
    memory: there is one iterator of the stream per pass, and each waits at the next reset.
    """
    check_at_least("times", times, 1)
    if not isinstance(stream, Stream):
        kind = type(stream).__name__
        text = (
            f"Expected a Stream, which can be iterated again for each pass, found {kind}. Pass "
            "Stream(protocol, make), where make() returns the batches from the start."
        )
        raise BadInput("wrong_type", text, option="stream", found=kind)

    def make() -> Iterator[Batch]:
        readings = [iter(stream) for _ in range(times)]
        if len({id(reading) for reading in readings}) < times:
            text = (
                "Expected a stream that starts again whenever it is iterated, found one whose "
                "make() returns the same iterator. Create the batches inside make()."
            )
            raise BadInput("not_repeatable", text)
        for parts in zip_longest(*(_split_at_resets(reading) for reading in readings)):
            sizes = []
            for epoch, part in enumerate(parts, start=1):
                sizes.append(0)
                for batch in part or ():
                    sizes[-1] += 1
                    yield dataclasses.replace(batch, epoch=epoch, reset=batch.reset and epoch == 1)
                first, last = sizes[0], sizes[-1]
                if last != first:
                    text = (
                        f"Expected {first} batches in pass {epoch}, as in the first, found {last}. "
                        "Pass a stream that returns the same batches whenever it is iterated."
                    )
                    raise BadInput("count_mismatch", text, expected=first, found=last)

    return Stream(f"{times} passes; {stream.protocol}", make)


def with_clean_probe(stream: Stream, clean: Domain, batch_size: int = 200) -> Stream:
    """Return the same stream with a probe after each domain: the clean set, without learning.

    The error on the probes over time shows what the model forgets about its source. Their domain is
    named `<clean> after <domain>`.
    """

    def probes(after: str) -> Iterator[Batch]:
        for part in torch.split(torch.arange(len(clean)), batch_size):
            x, y = clean.take(part)
            yield Batch(x, y, f"{clean.name} after {after}", learns=False)

    def make() -> Iterator[Batch]:
        last: str | None = None
        for batch in stream:
            if last is not None and batch.domain != last:
                yield from probes(last)
            last = batch.domain
            yield batch
        if last is not None:
            yield from probes(last)

    return Stream(f"{stream.protocol}; {clean.name} probed after each domain", make)


def sliding_window(stream: Stream, size: int) -> Stream:
    """Return single images, each predicted together with the previous ones.

    The samples of the stream enter a window of the last `size` samples one by one. Every step
    predicts the window and counts only its newest sample. The method learns when the window has
    changed completely. A window that is not full yet is predicted without learning. Probes are
    unchanged.
    """
    check_at_least("size", size, 2)

    def make() -> Iterator[Batch]:
        window: list[Batch] = []
        fresh = 0
        for batch in stream:
            if batch.reset:
                window, fresh = [], 0
            if not batch.learns:
                yield batch
                continue
            names = batch.domains or (batch.domain,) * len(batch.x)
            counts = batch.counted
            if counts is None:
                counts = torch.ones(len(batch.x), dtype=torch.bool)
            for index in range(len(batch.x)):
                one = slice(index, index + 1)
                newest = Batch(batch.x[one], batch.y[one], names[index], counted=counts[one])
                window = [*window[-(size - 1) :], newest]
                fresh += 1
                learns = len(window) == size and fresh >= size
                fresh = 0 if learns else fresh
                yield Batch(
                    torch.cat([held.x for held in window]),
                    torch.cat([held.y for held in window]),
                    batch.domain,
                    reset=batch.reset and index == 0,
                    learns=learns,
                    domains=tuple(held.domain for held in window) if batch.domains else (),
                    n_new=1,
                    epoch=batch.epoch,
                    counted=None if batch.counted is None else _join_counted(window),
                )

    return Stream(f"single images in a window of {size}; {stream.protocol}", make)


def _join_counted(window: Sequence[Batch]) -> Tensor:
    return torch.cat([held.counted for held in window if held.counted is not None])


def _split_at_resets(batches: Iterator[Batch]) -> Iterator[Iterator[Batch]]:
    """Split batches at resets; each part must be consumed before the next one."""

    def number() -> Iterator[tuple[int, Batch]]:
        n_resets = 0
        for batch in batches:
            n_resets += batch.reset
            yield n_resets, batch

    for _, part in groupby(number(), key=itemgetter(0)):
        yield (batch for _, batch in part)
