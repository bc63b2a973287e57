"""Adapt one model on several devices or hosts that each process a part of every batch.

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

    for x in my_stream():  # whole batches; each process may also receive only its own part
        logits = adapted(x.tensor_split(count)[rank])  # logits of the samples of this process

    if rank == 0:
        adapted.save("state.safetensors")  # equal on all processes
    dist.destroy_process_group()

Run it with `torchrun --nproc-per-node 2 serve.py`.

The result equals that of one process with the whole batch, up to the rounding of sums. BatchNorm
statistics, the mean prediction, losses, gradients and the guard's averages are computed over all
processes. The random view of a sample depends on its position in the whole batch, which consists of
the parts in the order of the ranks. Parts may differ in size, and none may be empty. Weights,
optimiser and all other state stay equal on every process. A state saved by one process can
therefore be loaded by many, or by one that is not sharded, and vice versa.

Requirements:

* Every process makes the same calls in the same order: the same number of batches, and `reset()`,
  `load()`, `restore()` and `paused()` on all of them or none. Each batch begins with a comparison
  of counts, so that a difference is refused and not learned from.
* A batch that one process refuses (empty, not finite, of another shape) is refused on all, and
  nothing changes. If a process dies or fails in the middle of a batch, the others wait in an
  exchange until the timeout of the process group, which is 10 or 30 minutes by default. Pass
  `init_process_group(..., timeout=timedelta(seconds=60))` to shorten it. `torchrun` stops all
  processes when one of them ends.
* The processes must compute alike: the same kind of device and the same version of torch. Call
  `check_agreement(adapted)` at any time to compare the states.
* Layers other than BatchNorm that combine several samples see those of one process only.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from acclimate._version import __version__
from acclimate.errors import InvalidConfig, NotAdapted
from acclimate.functional.across import Processes, check_equal
from acclimate.functional.iabn import iabn_layers
from acclimate.methods import METHODS
from acclimate.methods.gradient import GradientMethod
from acclimate.methods.method import Method
from acclimate.snapshot import model_tensors
from acclimate.storage import digest

__all__ = ["check_agreement", "shard"]


def shard(adapted: Method, group: Any = None) -> Method:
    """Let several processes share every batch of an adapted model; return it.

    Call it on all of them. Afterwards each call takes this process's part of a batch and returns
    its logits. With a group of one process, nothing changes.

    Args:
        adapted: The result of `acclimate.adapt`; the same on every process.
        group: A process group of `torch.distributed`; the default group if None.
    """
    if not isinstance(adapted, Method):
        raise NotAdapted(
            "not_adapted",
            f"Expected the result of acclimate.adapt(...), found {type(adapted).__name__}.",
            found=type(adapted).__name__,
        )
    if not (dist.is_available() and dist.is_initialized()):
        raise NotAdapted(
            "no_process_group",
            "Expected a process group, found none. Run the program with torchrun "
            "--nproc-per-node 2 program.py, and call torch.distributed.init_process_group() first.",
        )
    adapted._check_usable()
    rank = dist.get_rank(group)
    if rank < 0:
        raise NotAdapted(
            "no_process_group",
            "This process does not belong to the group. Call shard() on its members only.",
        )
    processes = Processes(group, rank, dist.get_world_size(group))
    _compare(adapted, processes)
    adapted.processes = processes if processes.count > 1 else None
    return adapted


def check_agreement(adapted: Method) -> None:
    """Compare weights and all other state over the processes. Call it on all of them."""
    if adapted.processes is not None:
        _compare(adapted, adapted.processes)


def _compare(adapted: Method, processes: Processes) -> None:
    """Raise on all processes if one of them has to, so that none is left waiting."""
    everyone = processes.exchange((_problem(adapted), _facts(adapted)))
    for problem, _ in everyone:
        if problem is not None:
            # A new object: the traceback of the old one would keep this frame and the model alive.
            raise InvalidConfig(problem.code, str(problem), **problem.data)
    check_equal([facts for _, facts in everyone])


def _problem(adapted: Method) -> InvalidConfig | None:
    """Return why a method cannot share batches between processes, and the remedy."""
    kind = type(adapted)
    if not kind.card.shards:
        able = tuple(name for name, other in METHODS.items() if other.card.shards)
        return InvalidConfig(
            "not_shardable",
            f'The method "{kind.name}" cannot share batches between processes: it selects, counts, '
            "stores or averages samples, and would see only those of one process. Use one of "
            f"{', '.join(able)}, or run {kind.name} in one process.",
            method=kind.name,
            known=able,
        )
    if adapted.config.statistics == "batch" and iabn_layers(adapted.model):
        return InvalidConfig(
            "out_of_range",
            "Instance-aware BatchNorm layers cannot use the statistics of a batch that several "
            'processes share. Adapt with statistics="source" or "running".',
            option="statistics",
            found="batch",
        )
    speed = adapted.speed
    has_nsp = isinstance(adapted, GradientMethod) and "nsp" in adapted.terms
    in_parts = has_nsp and 0 < speed.view_share < 1
    if speed.micro_batch or speed.checkpoint or in_parts:
        options = {"micro_batch": speed.micro_batch, "checkpoint": speed.checkpoint}
        return InvalidConfig(
            "not_applicable",
            "The speed options micro_batch, checkpoint and a view_share between 0 and 1 split a "
            "batch differently on each process. Remove them; each process needs less memory and "
            "time anyway. The other speed options are supported.",
            option=next((name for name, value in options.items() if value), "view_share"),
        )
    return None


def _facts(adapted: Method) -> dict[str, object]:
    """Return what must be equal on all processes."""
    extra = adapted.get_extra_state()
    tensors = dict(extra["tensors"])
    generator = {"generator": tensors.pop("generator")}
    return {
        **json.loads(extra["identity"]),
        "weights": digest(model_tensors(adapted)),
        "seed": digest(generator),
        "state": digest(tensors, extra["tree"]),
        "head": adapted.head,
        "normalization": repr(adapted.normalization),
        "torch": torch.__version__,
        "acclimate": __version__,
    }
