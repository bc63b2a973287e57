"""Adapt one model on several devices or hosts, each of which processes a part of every batch.

A complete program, `serve.py`:

    import torch
    import torch.distributed as dist

    import acclimate
    from acclimate.distributed import shard

    dist.init_process_group("gloo")  # "nccl" on GPUs, after torch.cuda.set_device(LOCAL_RANK)
    rank, count = dist.get_rank(), dist.get_world_size()

    model = load_my_model()  # the same weights on every process
    artifact = acclimate.Artifact.load("model.acclimate")
    adapted = shard(acclimate.adapt(model, "swr_nsp", artifact))

    for x in my_stream():  # batches; or let each process receive its own part
        logits = adapted(x.tensor_split(count)[rank])  # of the samples given here

    if rank == 0:
        adapted.save("state.safetensors")  # equal on all processes
    dist.destroy_process_group()

Run it with `torchrun --nproc-per-node 2 serve.py`.

The result is that of one process with the whole batch, up to the rounding of sums: BatchNorm
statistics, the mean prediction, losses, gradients and the guard's averages are taken over all
processes, and the random view of a sample depends on its place in the whole batch, which is the
parts one after the other, in the order of the ranks. Parts may differ in size, and none may be
empty. Weights, optimiser and all other state stay equal on every process. So a state that was saved
by one process can be loaded by many, or by one that is not sharded, and the other way round.

What to observe:

* Every process makes the same calls in the same order: as many batches, and `reset()`, `load()`,
  `restore()` and `paused()` on all of them or none. Each batch begins with a comparison of counts,
  so that a difference is refused rather than learned from.
* A batch that one process refuses (empty, not finite, of another shape) is refused on all, and
  nothing has changed. A process that dies, or fails half-way through a batch, leaves the others
  waiting in an exchange. What ends this is the timeout of the process group, which is 10 or 30
  minutes unless `init_process_group(..., timeout=timedelta(seconds=60))` says otherwise; `torchrun`
  stops all processes when one of them ends.
* The processes must compute alike: the same kind of device and the same version of torch. Where
  this is in doubt, `check_agreement(adapted)` compares the states, at any time.
* Layers other than BatchNorm that look at several samples at once see those of one process only.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from acclimate._version import __version__
from acclimate.errors import InvalidConfig, NotAdapted
from acclimate.functional.iabn import iabn_layers
from acclimate.functional.processes import Processes, check_equal
from acclimate.methods import METHODS
from acclimate.methods.base import Method
from acclimate.methods.gradient import GradientMethod
from acclimate.snapshot import model_tensors
from acclimate.storage import digest

__all__ = ["check_agreement", "shard"]


def shard(adapted: Method, group: Any = None) -> Method:
    """Let several processes share every batch of an adapted model.

    To be called on all of them. Afterwards each call takes the part of a batch that is here and
    returns its logits. With a group of one process, nothing changes.

    Args:
        adapted: What `acclimate.adapt` returned; the same on every process.
        group: Of `torch.distributed`; the default group if None.

    Returns:
        The same object.

    Raises:
        InvalidConfig: The method cannot be spread over processes.
        NotAdapted: There is no process group, or the processes differ in what must be equal.
    """
    if not isinstance(adapted, Method):
        raise NotAdapted(
            "not_adapted",
            f"expected what acclimate.adapt(...) returned, found {type(adapted).__name__}.",
            found=type(adapted).__name__,
        )
    if not (dist.is_available() and dist.is_initialized()):
        raise NotAdapted(
            "no_process_group",
            "expected a process group, found none. Run the program with torchrun "
            "--nproc-per-node 2 program.py, and call torch.distributed.init_process_group() first.",
        )
    adapted._check_usable()
    rank = dist.get_rank(group)
    if rank < 0:
        raise NotAdapted(
            "no_process_group",
            "this process does not belong to the group. Call shard() on its members only.",
        )
    processes = Processes(group, rank, dist.get_world_size(group))
    _compare(adapted, processes)
    adapted.processes = processes if processes.count > 1 else None
    return adapted


def check_agreement(adapted: Method) -> None:
    """Compare weights and all other state over the processes; to be called on all of them.

    Raises:
        NotAdapted: With what differs, and on which rank.
    """
    if adapted.processes is not None:
        _compare(adapted, adapted.processes)


def _compare(adapted: Method, processes: Processes) -> None:
    """Refuse on all processes if one has to, so that none is left waiting."""
    everyone = processes.exchange((_problem(adapted), _facts(adapted)))
    for problem, _ in everyone:
        if problem is not None:
            # Not the same object: its traceback would keep this frame, and the model, alive.
            raise InvalidConfig(problem.code, str(problem), **problem.data)
    check_equal([facts for _, facts in everyone])


def _problem(adapted: Method) -> InvalidConfig | None:
    """Return why a method cannot be spread over processes, and what to do."""
    kind = type(adapted)
    if not _can_shard(kind):
        able = tuple(name for name, other in METHODS.items() if _can_shard(other))
        return InvalidConfig(
            "not_shardable",
            f"{kind.name} cannot be spread over processes: it chooses, counts or keeps samples, "
            "or averages over them, in ways that would see only those of one process. Use one of "
            f"{', '.join(able)}; or run {kind.name} in one process.",
            method=kind.name,
            known=able,
        )
    if adapted.config.statistics == "batch" and iabn_layers(adapted.model):
        return InvalidConfig(
            "out_of_range",
            "instance-aware BatchNorm layers cannot use the statistics of a batch that is spread "
            'over processes. Adapt with statistics="source" or "running".',
            option="statistics",
            found="batch",
        )
    speed = adapted.speed
    in_parts = isinstance(adapted, GradientMethod) and adapted.nsp and 0 < speed.view_share < 1
    if speed.micro_batch or speed.checkpoint or in_parts:
        options = {"micro_batch": speed.micro_batch, "checkpoint": speed.checkpoint}
        return InvalidConfig(
            "not_applicable",
            "micro_batch, checkpoint and a view_share between 0 and 1 take a batch apart in ways "
            "that differ between processes. Leave them out: parts of a batch need less memory and "
            "time anyway. The other options of speed can be had.",
            option=next((name for name, value in options.items() if value), "view_share"),
        )
    return None


def _can_shard(kind: type[Method]) -> bool:
    # Not inherited: a subclass may do with the samples what its base does not.
    return bool(vars(kind).get("shards", False))


def _facts(adapted: Method) -> dict[str, object]:
    """Return what must be equal on all processes."""
    extra = adapted.get_extra_state()
    tensors = dict(extra["tensors"])
    draws = {"generator": tensors.pop("generator")}
    options = vars(adapted.guard) if adapted.guard is not None else {}
    return {
        **json.loads(extra["identity"]),
        "weights": digest(model_tensors(adapted)),
        "seed": digest(draws),
        "state": digest(tensors, extra["tree"]),
        "head": adapted.head,
        "normalization": repr(adapted.normalization),
        "guard": {name: value for name, value in options.items() if isinstance(value, int | float)},
        "torch": torch.__version__,
        "acclimate": __version__,
    }
