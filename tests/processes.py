"""Runs a job on several processes that can talk to each other, and collects what they return."""

from __future__ import annotations

import datetime
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_on_processes(count, job, folder, *arguments):
    """Return what `job(rank, *arguments)` returned on each process; plain values and tensors."""
    mp.spawn(_start, (count, job, str(folder), arguments), nprocs=count)
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(count)]


def _start(rank, count, job, folder, arguments):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=(Path(folder) / "meeting").as_uri(),
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=120),
    )
    torch.save(job(rank, *arguments), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
