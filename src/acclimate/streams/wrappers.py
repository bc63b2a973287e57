"""Streams made from other streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from acclimate.errors import BadInput
from acclimate.streams.batch import Batch, Domain, Stream


def episodic(stream: Stream) -> Stream:
    """The same stream with a reset before every batch: nothing is remembered."""

    def make() -> Iterator[Batch]:
        for batch in stream:
            yield dataclasses.replace(batch, reset=True)

    return Stream(f"episodic: reset before each batch; {stream.protocol}", make)


def epochs(stream: Stream, times: int) -> Stream:
    """The same stream several times over, without a reset between the passes of a domain.

    Each domain is repeated before the next one comes, so that resets between domains stay where
    they are; the error of pass k is that of the batches whose `epoch` is k.
    """
    if times < 1:
        raise BadInput(f"expected at least 1 pass, found {times}.")

    def make() -> Iterator[Batch]:
        held: list[Batch] = []
        for batch in stream:
            if batch.reset and held:
                yield from _repeat(held, times)
                held = []
            held.append(batch)
        yield from _repeat(held, times)

    return Stream(f"{times} passes; {stream.protocol}", make)


def with_clean_probe(stream: Stream, clean: Domain, batch_size: int = 200) -> Stream:
    """The same stream with the clean set predicted, not learned from, after each domain.

    The error on the probes over time is what the model forgets of its source. Their domain is
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
    """Single images, each predicted together with the ones before it.

    The samples of the stream come one by one into a window of the last `size`; every step predicts
    the window and counts its newest sample only. The method learns when the window has changed
    completely. A window that is not full yet is predicted without learning.
    """
    if size < 2:
        raise BadInput(f"expected a window of at least 2 samples, found {size}.")

    def make() -> Iterator[Batch]:
        window: list[Batch] = []
        fresh = 0
        for batch in stream:
            for index in range(len(batch.x)):
                one = slice(index, index + 1)
                reset = batch.reset and index == 0
                if reset:
                    window, fresh = [], 0
                single = Batch(batch.x[one], batch.y[one], batch.domain)
                window = [*window[-(size - 1) :], single]
                fresh += 1
                learns = len(window) == size and fresh >= size
                fresh = 0 if learns else fresh
                yield Batch(
                    torch.cat([held.x for held in window]),
                    torch.cat([held.y for held in window]),
                    batch.domain,
                    reset=reset,
                    learns=learns,
                    n_new=1,
                    epoch=batch.epoch,
                )

    return Stream(f"single images in a window of {size}; {stream.protocol}", make)


def _repeat(batches: list[Batch], times: int) -> Iterator[Batch]:
    for epoch in range(1, times + 1):
        for batch in batches:
            yield dataclasses.replace(batch, epoch=epoch, reset=batch.reset and epoch == 1)
