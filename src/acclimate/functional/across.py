"""Processes that share a batch, and the size, means and random numbers of the whole batch.

While processes share a batch (`Processes.share`), the functions `batch_...` take the samples of one
process and return results for the whole batch. Otherwise they reduce to the plain operation
(`batch_mean(x)` is `x.mean(0)`) without any overhead.

Gradients: each process has some samples of a batch, in the order of the ranks. The loss is that of
the whole batch, and therefore the same number on every process. A sum over processes is returned to
all of them, so its backward pass is a sum over processes as well. Each process then has its part of
the gradient of *all* these equal losses together; the average over the processes is the gradient of
one.
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
from acclimate.functional.precision import at_least_float32


@dataclass
class Processes:
    """The processes that share every batch.

    Attributes:
        group: Their process group in `torch.distributed`.
        rank: Rank of this process in the group.
        count: Number of processes.
        in_step: Whether no batch has failed before its end. After such a failure this process may
            have taken part in fewer exchanges than the others.
    """

    group: Any
    rank: int
    count: int
    in_step: bool = True

    def __deepcopy__(self, memo: object) -> Self:
        """Return itself: a copy of an adapted model uses the same processes."""
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
        """Validate this process's samples of a batch and yield them, if all processes can.

        `accept` returns them ready for use, or raises; `facts` must be equal on all processes.
        Inside, the functions of `acclimate.functional.across` return results for the whole batch.

        Raises:
            BadInput: Some process does not accept its samples; raised on all of them.
            NotAdapted: The facts differ, or an earlier batch failed before its end.
        """
        if not self.in_step:
            raise NotAdapted(
                "out_of_step",
                "An earlier batch failed before its end, so the processes may be out of step. Stop "
                "all of them, start again and load() a saved state. If it failed on all of them in "
                "the same way, call acclimate.distributed.shard(adapted) again.",
            )
        refusal: AcclimateError | None = None
        mine: tuple[str | None, int, Mapping[str, object]]
        try:
            x = accept(x)
            mine = None, len(x), {**facts, "samples": f"{list(x.shape[1:])} of {x.dtype}"}
        except AcclimateError as error:
            refusal, mine = error, (str(error), 0, {})
        self.in_step = False  # until the exchange has succeeded
        everyone = self.exchange(mine)
        self.in_step = True
        if refusal is not None:
            raise refusal
        refusals = {rank: text for rank, (text, _, _) in enumerate(everyone) if text}
        if refusals:
            lines = "".join(f"\n  rank {rank}: {text}" for rank, text in refusals.items())
            raise BadInput(
                "refused_elsewhere",
                "This batch is refused on all processes, because some cannot use their part of it:"
                f"{lines}\nNothing was changed on any of them. Correct the input of those ranks.",
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
    """The part of a shared batch that belongs to this process.

    Attributes:
        processes: All processes that share the batch.
        sizes: The number of samples of each process, by rank.
    """

    processes: Processes
    sizes: tuple[int, ...]

    @property
    def n(self) -> int:
        """Number of samples in the whole batch."""
        return sum(self.sizes)

    def rows(self, n: int) -> slice:
        """Return the positions of this process's samples in the whole batch; there must be n."""
        here = self.sizes[self.processes.rank]
        if n != here:
            raise NotAdapted(
                "shards_unsupported",
                f"Expected one row per sample, {here} for this process's part of a shared batch, "
                f"found {n}. A method that processes parts of a batch cannot share batches between "
                "processes. Set shards=False in its MethodCard.",
            )
        start = sum(self.sizes[: self.processes.rank])
        return slice(start, start + n)

    def sum(self, x: Tensor) -> Tensor:
        """Return the differentiable sum of a tensor over the processes."""
        return _Sum.apply(x, self.processes.group)  # type: ignore[no-any-return, no-untyped-call]

    def gather(self, x: Tensor) -> Tensor:
        """Return the tensors of all processes, stacked by rank; differentiable."""
        blank = torch.zeros_like(x)
        ranks = range(self.processes.count)
        return self.sum(torch.stack([x if r == self.processes.rank else blank for r in ranks]))


_active: ContextVar[Shard | None] = ContextVar("acclimate_shard", default=None)


def active() -> Shard | None:
    """Return this process's part of the batch that is being shared; None if there is none."""
    return _active.get()


def check_equal(facts: Sequence[Mapping[str, object]]) -> None:
    """Raise NotAdapted if the facts of the processes differ; list the differences by rank.

    >>> check_equal([{"seed": 0}, {"seed": 0}])
    """
    by_rank = {name: tuple(found.get(name) for found in facts) for name in facts[0]}
    differences = {n: v for n, v in by_rank.items() if any(value != v[0] for value in v)}
    if differences:
        lines = [
            f"\n  {name}: rank {rank} has {values[rank]!r}, rank 0 has {values[0]!r}"
            for rank in range(len(facts))
            for name, values in differences.items()
            if values[rank] != values[0]
        ]
        raise NotAdapted(
            "processes_differ",
            f"Expected the same state on all processes, found differences:{''.join(lines)}\n"
            "Use the same weights, artifact, options and seed on every process, and make the same "
            "calls, including load() and reset(), on all of them.",
            differences=differences,
        )


class _Sum(torch.autograd.Function):
    """The sum over processes, returned to all of them; its backward pass is such a sum as well."""

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


def batch_size(x: Tensor) -> int:
    """Return the number of samples in the whole batch; `x` has those of this process."""
    shard = active()
    if shard is None:
        return len(x)
    shard.rows(len(x))
    return shard.n


def batch_mean(x: Tensor) -> Tensor:
    """Return the mean over the samples of the whole batch; `x` has one row per local sample."""
    shard = active()
    if shard is None:
        return x.mean(dim=0)
    n = batch_size(x)
    return shard.sum(x.sum(dim=0)) / n


def batch_logsumexp(x: Tensor) -> Tensor:
    """Return the logarithm of the sum of exponentials over the samples of the whole batch."""
    shard = active()
    here = torch.logsumexp(x, dim=0)
    if shard is None:
        return here
    shard.rows(len(x))
    return torch.logsumexp(shard.gather(here), dim=0)


def batch_rand(n: int, n_columns: int, generator: torch.Generator) -> Tensor:
    """Return random numbers for `n` local samples, (n, n_columns), in double precision.

    The numbers of a sample depend on its position in the whole batch, not on its process, and the
    generator advances equally on all processes.
    """
    shard = active()
    if shard is None:
        return torch.rand(n, n_columns, generator=generator, dtype=torch.float64)
    rows = shard.rows(n)
    return torch.rand(shard.n, n_columns, generator=generator, dtype=torch.float64)[rows]


def everywhere(flag: Tensor) -> bool:
    """Return whether a condition holds on all processes that share the batch."""
    shard = active()
    return bool(flag) if shard is None else not bool(shard.sum((~flag).int()))


def average(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return gradients averaged over the processes that share the batch, in few exchanges."""
    shard = active()
    result = list(gradients)
    if shard is None:
        return result
    known = [(index, tensor) for index, tensor in enumerate(gradients) if tensor is not None]
    for kind in sorted({(str(t.dtype), str(t.device)) for _, t in known}):
        bucket = [(i, t) for i, t in known if (str(t.dtype), str(t.device)) == kind]
        flat = torch.cat([tensor.detach().reshape(-1) for _, tensor in bucket])
        # Round sums of half-precision numbers only once, at the end.
        flat = shard.sum(at_least_float32(flat)).div_(shard.processes.count).to(flat.dtype)
        parts = flat.split_with_sizes([tensor.numel() for _, tensor in bucket])
        for (index, tensor), part in zip(bucket, parts, strict=True):
            result[index] = part.view(tensor.shape)
    return result
