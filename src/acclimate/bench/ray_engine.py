"""The Ray engine: jobs on the nodes of a cluster, their records streamed back into this folder.

Each worker is an actor of Ray that runs jobs one after another. What it has measured comes back as
it is measured, checkpoints too, so that a job whose worker or node is lost goes on elsewhere from
its last checkpoint. A node needs acclimate and the code of the models; weights, artifacts and data
that it has not are sent to it once, whoever asks for them there.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acclimate.bench.attempt import Setup
from acclimate.bench.crew import Crew, Heard, end_all
from acclimate.bench.desk import Goods
from acclimate.bench.events import OnEvent
from acclimate.bench.ray_worker import RayWorker
from acclimate.bench.remote import RemoteWorker
from acclimate.bench.store import Store
from acclimate.bench.workers import choose_n_workers, limit_threads, share_threads
from acclimate.data.places import VARIABLE
from acclimate.errors import BadInput, MissingExtra

# A worker takes answers and the wish to stop while it runs a job.
_CONCURRENCY = 4
# Seconds between two looks at which nodes there are, and to wait if there are none.
_LOOK_AT_NODES_EVERY, _WAIT_FOR_NODES = 2.0, 120.0
# Seconds in which an address must answer.
_ANSWER = 10.0


def run_ray(
    store: Store,
    names: Sequence[str],
    setup: Setup,
    on_event: OnEvent,
    *,
    n_workers: int | None = None,
    retries: int = 1,
    address: str | None = None,
    n_cpus: int | None = None,
    n_gpus: float = 0,
) -> None:
    """Run jobs on a Ray cluster; see `acclimate.bench.run_suite`.

    Args:
        store: Where the suite is kept.
        names: Of the folders of the jobs to run.
        setup: What they have in common.
        on_event: Is told what happens.
        n_workers: Jobs at once; None for as many as the cluster has room for.
        retries: How often a job is taken up again after its worker or its node was lost.
        address: Of the cluster, such as `auto` or `HOST:6379`; if it is None, the environment may
            say it (`RAY_ADDRESS`), else Ray is started on this machine, and ended with the run.
        n_cpus: Cores of each job, and the threads it computes with. None for one; on this machine
            for its share of the cores.
        n_gpus: Graphics processors of each job; parts are possible.

    Raises:
        MissingExtra: Ray is not installed.
        BadInput: The cluster cannot be reached, or has no node that is large enough.
    """
    for option, what, value, lowest in (
        ("n_workers", "worker", n_workers, 1),
        ("n_cpus", "core", n_cpus, 1),
        ("n_gpus", "GPU", n_gpus, 0),
    ):
        if value is not None and value < lowest:
            raise BadInput(
                "out_of_range",
                f"Expected at least {lowest} {what}, found {value}.",
                option=option,
                found=value,
            )
    ray = import_ray()
    place = os.environ.get("RAY_ADDRESS") if address is None else address
    if not (place or ray.is_initialized()):
        n_workers = min(n_workers or choose_n_workers(len(names)), len(names))
        n_cpus = n_cpus or share_threads(n_workers)
    n_threads = n_cpus or 1
    size = {"num_cpus": n_threads, "num_gpus": n_gpus}
    with connect(ray, place, n_workers or 1, size):
        slots = Slots(ray, **size)
        goods = Goods(setup, ray.put)
        actor = ray.remote(RemoteWorker).options(
            **size,
            max_concurrency=_CONCURRENCY,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": limit_threads(n_threads)},
        )

        def hire(heard: Heard) -> RayWorker:
            shared = setup.to_dict(), n_threads, str(Path.cwd()), _tell_environment()
            return RayWorker(ray, actor.remote(*shared), goods, heard)

        def count() -> int:
            room = slots.count()
            return room if n_workers is None else min(n_workers, room)

        crew = Crew(store, names, setup, on_event, hire=hire, count=count, retries=retries)
        try:
            crew.run()
        finally:
            end_all(crew.workers)


def import_ray() -> Any:
    """Return the package.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingExtra(
            "missing_extra",
            "The engine ray requires Ray, which is not installed. Run: pip install "
            "'acclimate[ray]'",
            package="ray",
        ) from error


@contextmanager
def connect(
    ray: Any, address: str | None, n_workers: int, size: Mapping[str, float]
) -> Iterator[None]:
    """Be connected to a cluster, or to one that is made of this machine; undo what was done.

    Args:
        ray: The package.
        address: Of the cluster; None for this machine, unless Ray is in use already.
        n_workers: Jobs at once on this machine.
        size: What each needs.
    """
    if ray.is_initialized():
        yield
        return
    if address is not None and address.startswith("ray://"):
        raise BadInput(
            "cluster_unreachable",
            f"Expected the address of a cluster that this machine is part of, found {address}. "
            "Run the command on a node with --address auto, or with ray job submit.",
            address=address,
        )
    _check_there(address)
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address is None:
            whole = {name: math.ceil(n_workers * amount) for name, amount in size.items()}
            ray.init("local", include_dashboard=False, **whole, **quiet)
        else:
            ray.init(address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _explain(address, error) from error
    try:
        yield
    finally:
        ray.shutdown()


class Slots:
    """Counts how many jobs the nodes have room for, now and then."""

    def __init__(self, ray: Any, num_cpus: float, num_gpus: float) -> None:
        self._ray = ray
        needs = {"CPU": num_cpus, "GPU": num_gpus}
        self._needs = {name: n for name, n in needs.items() if n}
        self._n, self._due, self._last = 0, 0.0, -math.inf

    def count(self) -> int:
        """Return for how many jobs at once there are nodes, whoever uses them.

        Raises:
            BadInput: There is no such node, and was none for some time.
        """
        now = time.monotonic()
        if now >= self._due:
            alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            self._n = sum(self._fit(has) for has in alive)
            self._due = now + _LOOK_AT_NODES_EVERY
            self._last = now if self._n else self._last
        if now > self._last + _WAIT_FOR_NODES:
            told = " and ".join(f"{n:g} {name}" for name, n in self._needs.items())
            raise BadInput(
                "insufficient_resources",
                f"No node of the cluster has {told}. Request less with --cpus and --gpus, or add "
                "a node, and run the suite again. Finished jobs are kept.",
                required=dict(self._needs),
            )
        return self._n

    def _fit(self, has: Mapping[str, float]) -> int:
        return min(int(has.get(name, 0) // n) for name, n in self._needs.items())


def _check_there(address: str | None) -> None:
    """Refuse an address where nobody listens: Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER).close()
    except OSError as error:
        raise _explain(address, error) from error


def _explain(address: str | None, error: Exception) -> BadInput:
    return BadInput(
        "cluster_unreachable",
        f"Cannot connect to Ray at {address or 'this machine'} ({error}). Start a cluster with "
        "ray start --head, or remove --address to use only this machine.",
        address=address,
    )


def _tell_environment() -> dict[str, str]:
    """Return what a node should know where its own environment says nothing."""
    named = os.environ.get(VARIABLE)
    return {VARIABLE: str(Path(named).expanduser().absolute())} if named else {}
