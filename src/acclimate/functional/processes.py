"""Processes that share a batch: each holds some of its samples, in the order of the ranks.

On gradients. The loss is that of the whole batch, hence the same number on every process. A sum
over processes goes to all of them, so what comes back through it is a sum over processes as well.
Each process then holds its part of the gradient of *all* these equal losses together; averaged over
the processes, the parts are the gradient of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from acclimate.errors import AcclimateError, BadInput, NotAdapted


@dataclass
class Processes:
    """The processes that share every batch.

    Attributes:
        group: Theirs, in `torch.distributed`.
        rank: Of this process in it.
        count: How many there are.
        in_step: Whether no batch has failed half-way, after which this process may have taken part
            in fewer exchanges than the others.
    """

    group: Any
    rank: int
    count: int
    in_step: bool = True

    def __deepcopy__(self, memo: object) -> Self:
        """Return itself: a copy of an adapted model talks to the same processes."""
        return self

    def exchange(self, facts: object) -> list[Any]:
        """Return what every process passed here, by rank."""
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, facts, group=self.group)
        return found

    @contextmanager
    def share(
        self, x: Tensor, accept: Callable[[Tensor], Tensor], facts: Mapping[str, object]
    ) -> Iterator[Tensor]:
        """Take this process's samples of a batch, if every process can take its own.

        Inside, the functions of `acclimate.functional.across` speak of the whole batch.

        Args:
            x: The samples that are here.
            accept: Returns them ready for use, or raises.
            facts: What must be equal on all processes, by name.

        Raises:
            BadInput: Some process does not accept its samples; raised on all of them.
            NotAdapted: Something differs that must not, or a batch failed half-way before.
        """
        if not self.in_step:
            raise NotAdapted(
                "out_of_step",
                "an earlier batch failed half-way, and the processes may be out of step. Stop all "
                "of them, start again and load() a saved state. (If it failed on all of them "
                "alike, acclimate.distributed.shard(adapted) makes a new start.)",
            )
        refusal: AcclimateError | None = None
        mine: tuple[str | None, int, Mapping[str, object]]
        try:
            x = accept(x)
            mine = None, len(x), {**facts, "samples": f"{list(x.shape[1:])} of {x.dtype}"}
        except AcclimateError as error:
            refusal, mine = error, (str(error), 0, {})
        self.in_step = False  # until it is over: it may fail at any point
        everyone = self.exchange(mine)
        self.in_step = True
        if refusal is not None:
            raise refusal
        refusals = {rank: text for rank, (text, _, _) in enumerate(everyone) if text}
        if refusals:
            lines = "".join(f"\n  rank {rank}: {text}" for rank, text in refusals.items())
            raise BadInput(
                "refused_elsewhere",
                "this batch is refused on all processes, since not all can use their part of it:"
                f"{lines}\nNothing has changed on any of them.",
                refusals=refusals,
            )
        check_equal([found for _, _, found in everyone])
        token = _active.set(Shard(self, tuple(size for _, size, _ in everyone)))
        self.in_step = False
        try:
            yield x
            self.in_step = True
        finally:
            _active.reset(token)


@dataclass(frozen=True)
class Shard:
    """What this process holds of the batch that is being shared.

    Attributes:
        processes: All that hold some of it.
        sizes: The number of samples each has, by rank.
    """

    processes: Processes
    sizes: tuple[int, ...]

    @property
    def n(self) -> int:
        """Samples in the whole batch."""
        return sum(self.sizes)

    def rows(self, n: int) -> slice:
        """Return where the samples that are here stand in the whole batch.

        Raises:
            NotAdapted: `n` is not their number, so that something else must be meant.
        """
        here = self.sizes[self.processes.rank]
        if n != here:
            raise NotAdapted(
                "shards_unsupported",
                f"expected one row for each of the {here} samples that this process has of a "
                f"shared batch, found {n}. A method that works on parts of a batch cannot be "
                "spread over processes: leave shards = False in its class.",
            )
        start = sum(self.sizes[: self.processes.rank])
        return slice(start, start + n)

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes, with its derivative."""
        return _Sum.apply(x, self.processes.group)  # type: ignore[no-any-return, no-untyped-call]

    def gather(self, x: Tensor) -> Tensor:
        """Return the tensors of all processes, stacked by rank, with the derivative."""
        blank = torch.zeros_like(x)
        ranks = range(self.processes.count)
        return self.sum(torch.stack([x if r == self.processes.rank else blank for r in ranks]))


_active: ContextVar[Shard | None] = ContextVar("acclimate_shard", default=None)


def active() -> Shard | None:
    """Return what this process has of the batch that is being shared; None if none is."""
    return _active.get()


def check_equal(facts: Sequence[Mapping[str, object]]) -> None:
    """Raise NotAdapted if facts that processes told each other differ; say which, and where.

    >>> check_equal([{"seed": 0}, {"seed": 0}])
    """
    by_rank = {name: tuple(found.get(name) for found in facts) for name in facts[0]}
    differences = {
        name: values
        for name, values in by_rank.items()
        if any(value != values[0] for value in values)
    }
    if differences:
        lines = [
            f"\n  {name}: rank {rank} has {values[rank]!r}, rank 0 has {values[0]!r}"
            for rank in range(len(facts))
            for name, values in differences.items()
            if values[rank] != values[0]
        ]
        raise NotAdapted(
            "processes_differ",
            f"expected the same on all processes, found differences:{''.join(lines)}\n"
            "Every process must have the same weights, artifact, options and seed, and must make "
            "the same calls; after load() or reset() on one, do it on all.",
            differences=differences,
        )


class _Sum(torch.autograd.Function):
    """The sum over processes, given to all; so is the sum of the gradients that come back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_reduce(gradients[0], ctx.group), None


def _all_reduce(x: Tensor, group: Any) -> Tensor:
    result = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, group=group)
    return result
