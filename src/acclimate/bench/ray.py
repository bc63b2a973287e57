"""Run jobs on the nodes of a Ray cluster.

Each job is a task of Ray, and its messages come through a queue of Ray's. Run folders are on a file
system that all nodes see, or at a URL, where they are copied at every checkpoint; so a job is
resumed on any node. Data, weights and artifacts that a node lacks are loaded by one actor on the
machine of the command, and travel through Ray's object store, once to each node.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import math
import os
import platform
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import fsspec
import numpy as np
import torch
from fsspec.implementations.local import LocalFileSystem
from torch import Tensor, nn

from acclimate.artifact import Artifact
from acclimate.bench.execute import RunOptions
from acclimate.bench.job import JobSpec
from acclimate.bench.load import Labelled, Loader
from acclimate.bench.provenance import describe_data, file_sha256
from acclimate.bench.run_folder import (
    BEGUN,
    CHECKPOINT,
    LOCK,
    RESULT,
    SPEC,
    SUMS,
    RunFolder,
)
from acclimate.bench.schedule import (
    PATIENCE,
    REPORT_EVERY,
    End,
    Executor,
    Message,
    Report,
    choose_n_workers,
    hold_interrupts,
    run_job,
)
from acclimate.bench.suite import ARTIFACTS, SUITE, Store
from acclimate.data import SETS, ArrayStore
from acclimate.data.places import VARIABLE
from acclimate.data.request import Data
from acclimate.errors import AcclimateError, BadInput, check_at_least, import_extra
from acclimate.process import limit_threads, share_threads, tune_process
from acclimate.storage import file_digest, write_atomically

# Seconds between two looks at which nodes there are, and to wait if no node is large enough.
_LOOK_AT_NODES_EVERY, _WAIT_FOR_NODES = 2.0, 120.0
# Seconds in which an address must answer.
_ANSWER = 10.0


@contextmanager
def open_ray(
    store: Store,
    n_jobs: int,
    options: RunOptions,
    *,
    n_workers: int | None = None,
    address: str | None = None,
    n_cpus: int | None = None,
    n_gpus: float = 0,
    storage: str | None = None,
) -> Iterator[Executor]:
    """Give an executor for a Ray cluster; see `acclimate.bench.run_suite`.

    Args:
        store: Where the suite is kept; all nodes must see its folder, unless there is a `storage`.
        n_jobs: How many jobs there are.
        options: How they are run.
        n_workers: Jobs at once; None for as many as the nodes have room for.
        address: Of the cluster, such as `auto` or `HOST:6379`; None for that of the environment
            (`RAY_ADDRESS`), or else for a cluster of this machine, which ends with the run.
        n_cpus: Cores and threads of each job. None for 1; on a cluster of this machine, its share.
        n_gpus: Graphics processors of each job, such as 0.5.
        storage: URL that all nodes can read and write, such as `s3://bucket/suite`; run folders are
            copied there. Any file system of fsspec.
    """
    for name, value, low in (
        ("n_workers", n_workers, 1),
        ("n_cpus", n_cpus, 1),
        ("n_gpus", n_gpus, 0),
    ):
        check_at_least(name, low if value is None else value, low)
    ray = import_ray()
    place = os.environ.get("RAY_ADDRESS") if address is None else address
    if not (place or ray.is_initialized()):
        n_workers = min(n_workers or choose_n_workers(), n_jobs)
        n_cpus = n_cpus or share_threads(n_workers)
    n = n_workers or 1
    cores = n_cpus or 1
    kept = None if storage is None else Storage(storage)
    with connect(ray, place, num_cpus=n * cores, num_gpus=math.ceil(n * n_gpus)):
        yield RayExecutor(ray, store, options, n_workers, (cores, n_gpus), kept)


def import_ray() -> Any:
    """Return the package."""
    return import_extra("ray", "The engine ray", "ray")


@contextmanager
def connect(ray: Any, address: str | None, **size: float) -> Iterator[None]:
    """Connect to a cluster, or start one of this size on this machine; disconnect at the end."""
    if ray.is_initialized():
        yield
        return
    host, _, port = (address or "").rpartition(":")
    try:
        if address is not None and address.startswith("ray://"):
            raise ValueError("run the command on a node of the cluster, or with ray job submit")
        if host and port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=_ANSWER).close()
        quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if address is None:
            ray.init("local", include_dashboard=False, **size, **quiet)
        else:
            ray.init(address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(
            "cluster_unreachable",
            f"Cannot connect to Ray at {address or 'this machine'} ({error}). Start a cluster with "
            "ray start --head, or remove --address to use only this machine.",
            address=address,
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


# The machine of the command -----------------------------------------------------------------------


@dataclass
class Running:
    """A job on some node: the lock on its local folder, where it is copied to at the end."""

    name: str
    held: ExitStack
    folder: RunFolder | None = None
    node: str = ""


class RayExecutor:
    """An executor of Ray's tasks: Ray places them, and keeps their processes and what they load."""

    def __init__(
        self,
        ray: Any,
        store: Store,
        options: RunOptions,
        n_workers: int | None,
        size: tuple[int, float],
        storage: Storage | None = None,
    ) -> None:
        n_cpus, n_gpus = size
        self.note_needs(ray, n_workers, n_cpus, n_gpus)
        self._storage = storage
        self._running: dict[Any, Running] = {}  # by the reference to how the job ends
        suite = (store.root / SUITE).resolve()
        data = os.environ.get(VARIABLE)
        path = None if data is None else str(Path(data).expanduser().absolute())
        node = ray.get_runtime_context().get_node_id()
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        local = {"num_cpus": 0, "scheduling_strategy": here}
        self._inbox = importlib.import_module("ray.util.queue").Queue(actor_options=local)
        assets = ray.remote(Assets).options(**local).remote(options, str(Path.cwd()), path)
        seen = (suite, file_digest(suite)) if storage is None else None
        run = secrets.token_hex(8)
        self._shared = run, options, str(Path.cwd()), path, seen, storage, assets, self._inbox
        self._task = ray.remote(run_on_node).options(
            num_cpus=n_cpus,
            num_gpus=n_gpus,
            max_retries=0,  # whether a job is begun again is known from its folder
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": limit_threads(n_cpus)},
        )

    def note_needs(self, ray: Any, n_workers: int | None, n_cpus: int, n_gpus: float) -> None:
        """Set what `capacity` counts."""
        self._ray, self._n_workers = ray, n_workers
        self._needs = {"CPU": n_cpus} | ({"GPU": n_gpus} if n_gpus else {})
        self._room, self._look_at, self._last = 0, -math.inf, time.monotonic()

    def capacity(self) -> int:
        """Return how many workers the nodes have room for."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_AT_NODES_EVERY
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            rooms = [[int(node.get(k, 0) // n) for k, n in self._needs.items()] for node in nodes]
            self._room = sum(min(room) for room in rooms)
            self._last = now if self._room else self._last
        if now > self._last + _WAIT_FOR_NODES:
            needs = " and ".join(f"{n:g} {name}" for name, n in self._needs.items())
            raise BadInput(
                "insufficient_resources",
                f"No node of the cluster has {needs}. Request less with --cpus and --gpus, or add "
                "a node, and run the suite again. Finished jobs are kept.",
                required=dict(self._needs),
            )
        return self._room if self._n_workers is None else min(self._n_workers, self._room)

    def begin(self, name: str, spec: JobSpec, folder: RunFolder) -> None:
        folder.make()
        job, place = Running(name, ExitStack()), str(folder.path.resolve())
        if self._storage is not None:
            if not job.held.enter_context(folder.hold()):
                self._running[self._ray.put("busy")] = job
                return
            job.folder, place = folder, _name(folder)
        folder.describe({"key": spec.key, **spec.to_dict()})
        if self._storage is not None and not self._storage.list_files(place):
            self._storage.upload(folder.path, place)
        names = [name for name in (spec.weights, spec.prepare.contrast_head) if name is not None]
        sums = {name: file_sha256(name) for name in names}
        self._running[self._task.remote(*self._shared, name, spec, place, sums)] = job

    def wait(self, seconds: float, report: Report) -> None:
        if not self._running:
            time.sleep(seconds)
            return
        ends = self._ray.wait(list(self._running), timeout=REPORT_EVERY)[0]
        known = {job.name: job for job in self._running.values()}
        for name, (kind, done, total, text) in self._inbox.get_nowait_batch(self._inbox.qsize()):
            if kind == "started" and name in known:
                known[name].node, text = text, ""
            if name in known:  # not the last words of a node that was lost
                report(name, (kind, done, total, text))
        for end in ends:
            report(self._running[end].name, self._get_end(end))

    def close(self) -> None:
        ends = list(self._running)
        for end in ends:
            self._ray.cancel(end)  # an interrupt, which `hold_interrupts` delays
        if ends:
            self._ray.wait(ends, num_returns=len(ends), timeout=PATIENCE)
        for end in ends:
            self._leave(end)

    def _get_end(self, end: Any) -> Message:
        """Let go of a job that has ended; return how."""
        job = self._leave(end)
        try:
            return self._ray.get(end), 0, 0, ""
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, BadInput):  # errors of jobs are in their folders
                raise cause from error
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            where = f" on {job.node}" if job.node else ""
            why = lines[-1].partition(". ")[0].rstrip(".")
            return "lost", 0, 0, f"was lost{where} ({why})"

    def _leave(self, end: Any) -> Running:
        """Let go of a job; what is in the storage is copied here."""
        job = self._running.pop(end)
        with job.held:
            if self._storage is not None and job.folder is not None:
                self._storage.download(_name(job.folder), job.folder.path)
        return job


class Assets:
    """An actor on the machine of the command: puts what nodes lack into the object store, once."""

    def __init__(
        self,
        options: RunOptions,
        folder: str,
        data: str | None,
        put: Callable[[Any], Any] | None = None,
    ) -> None:
        _enter(folder, data)
        self._loader = Loader(options.artifacts, "cpu")
        self._put = put or import_ray().put
        self._kept: dict[Hashable, list[Any]] = {}
        self._known: dict[Hashable, dict[str, Any]] = {}

    def get_file(self, path: str | Path) -> list[Any]:
        """Return the content of a file."""
        return self._keep(("file", str(path)), Path(path).read_bytes)

    def get_data(self, spec: JobSpec, found: Mapping[str, Any] | None) -> list[Any] | None:
        """Return the data of a job; None if the data that was `found` on a node are the same.

        Data that only nodes have must be the same on all of them.
        """
        needs_clean = spec.get_protocol().needs_clean
        key = spec.data_key
        if key not in self._known:
            try:
                self._known[key] = identify(self._loader.load_data(spec))
            except AcclimateError:
                if found is None:
                    raise
                self._known[key] = dict(found)
        if found == self._known[key]:
            return None
        load = partial(self._loader.load_data, spec)
        return self._keep(("data", *key, needs_clean), lambda: gather(load(), needs_clean))

    def get_source(self, spec: JobSpec, key: str) -> list[Any]:
        """Return the labelled images that the artifact of this key is prepared from."""

        def load() -> tuple[Any, Sequence[str]]:
            batches, classes = self._loader.open_source(spec, self._loader.load_data(spec))
            if not isinstance(getattr(batches, "store", None), ArrayStore):
                raise BadInput(
                    "not_found",
                    "The node that should prepare an artifact does not have the folder "
                    f"{spec.prepare.source}, and folders of source images are not transferred. "
                    "Copy it there to the same path, or run the suite on this machine first: "
                    "--engine local.",
                    path=spec.prepare.source or spec.data,
                )
            return batches, classes

        return self._keep(("source", key), load)

    def _keep(self, key: Hashable, load: Callable[[], Any]) -> list[Any]:
        # Ray fetches references that are arguments or results; those in a list are passed on.
        if key not in self._kept:
            self._kept[key] = [self._put(load())]
        return self._kept[key]


# The nodes ----------------------------------------------------------------------------------------

# Of this process: what it has loaded in a run, for its next job.
_LOADERS: dict[str, NodeLoader] = {}


def run_on_node(
    run: str,
    options: RunOptions,
    folder: str,
    data: str | None,
    suite: tuple[Path, str] | None,
    storage: Storage | None,
    assets: Any,
    inbox: Any,
    name: str,
    spec: JobSpec,
    place: str,
    sums: Mapping[str, str],
) -> End:
    """Run a job on a node; return how it ended. Its message `started` has the name of the node.

    Raises:
        BadInput: This machine does not see the folder of the suite.
    """
    _enter(folder, data)
    node = platform.node()
    if suite is not None and not has_file(str(suite[0]), suite[1]):
        raise BadInput(
            "folder_not_shared",
            f"The node {node} does not see {suite[0].parent}. Use a folder that all nodes see at "
            "the same path, or pass --storage URL.",
            path=suite[0].parent,
            node=node,
        )
    ray = import_ray()
    if run not in _LOADERS:
        scratch = Path(mkdtemp(prefix="acclimate-"))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        _LOADERS.clear()
        _LOADERS[run] = NodeLoader(options, scratch, partial(_ask, ray, assets), storage)

    sent: list[Any] = []

    def report(message: Message) -> None:
        if message[0] == "started":
            message = "started", 0, 0, node
        sent[:] = [inbox.actor.put_nowait.remote((name, message))]  # the job does not wait for it

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    with hold_interrupts() as should_stop:
        end = _LOADERS[run].run(spec, place, sums, report, should_stop)
    ray.get(sent)  # what was sent before has arrived as well
    return end


class NodeLoader(Loader):
    """Loads what is on this node if it is what the command means; else it is fetched."""

    def __init__(
        self,
        options: RunOptions,
        scratch: Path,
        ask: Callable[..., Any],
        storage: Storage | None = None,
    ) -> None:
        own = options.artifacts if storage is None else scratch / ARTIFACTS
        super().__init__(own, options.device)
        self._options, self._scratch, self._ask, self._storage = options, scratch, ask, storage

    def run(
        self,
        spec: JobSpec,
        place: str,
        sums: Mapping[str, str],
        report: Callable[[Message], None],
        should_stop: Callable[[], bool],
    ) -> End:
        """Run a job in a folder at this path, or of this name in the storage."""
        local = self.localize(spec, sums)
        how = self, self._options, report, should_stop, REPORT_EVERY
        if self._storage is None:
            return run_job(local, NodeFolder(place, spec), *how)
        path = self._scratch / place
        upload = partial(self._storage.upload, path, place)
        self._storage.download(place, path)
        try:
            end = run_job(local, NodeFolder(path, spec, upload), *how)
            upload()
        finally:
            shutil.rmtree(path, ignore_errors=True)
        return end

    def localize(self, spec: JobSpec, sums: Mapping[str, str]) -> JobSpec:
        """Return the job with files that are on this node."""

        def find(name: str | None) -> str | None:
            if name is None or has_file(name, sums[name]):
                return name
            path = self._scratch / f"{sums[name][:16]}-{Path(name).name}"
            if not path.is_file():
                write_atomically(path, self._ask("get_file", name))
            return str(path)

        how = replace(spec.prepare, contrast_head=find(spec.prepare.contrast_head))
        return replace(spec, weights=find(spec.weights), prepare=how)

    def read_data(self, spec: JobSpec) -> Data:
        if spec.data in SETS and SETS[spec.data].is_generated:
            return super().read_data(spec)
        try:
            own = super().read_data(spec)
        except AcclimateError:  # it may be elsewhere; if not, asking for it raises the error
            own = None
        sent: Data | None = self._ask("get_data", spec, None if own is None else identify(own))
        found = own if sent is None else sent
        if found is None:
            raise RuntimeError("data that a node lacks was not sent")
        return found

    def open_source(self, spec: JobSpec, data: Data) -> tuple[Labelled, Sequence[str]]:
        try:
            return super().open_source(spec, data)
        except AcclimateError:
            sent: tuple[Labelled, Sequence[str]]
            sent = self._ask("get_source", spec, spec.artifact_key)
            return sent

    def _load_or_make(
        self, key: str, spec: JobSpec, model: nn.Module, data: Data, parts: Sequence[str]
    ) -> Artifact:
        path = self.artifacts / f"{key}.acclimate"
        name = f"{ARTIFACTS}/{path.name}"
        if self._storage is None or self._storage.get(name, path):
            return super()._load_or_make(key, spec, model, data, parts)
        found = super()._load_or_make(key, spec, model, data, parts)
        self._storage.put(path, name)
        return found


class NodeFolder(RunFolder):
    """A run folder that is copied to the storage, if there is one, whenever it can be resumed from.

    Its result names the files of the machine of the command.
    """

    def __init__(
        self, path: str | Path, spec: JobSpec, upload: Callable[..., None] | None = None
    ) -> None:
        super().__init__(path, on_saved=upload)
        self._spec = spec

    def finish(self, result: Mapping[str, Any], kept: Sequence[str] = ()) -> None:
        origin = {**result["provenance"], "spec": self._spec.to_dict()}
        if self._spec.weights is not None:
            origin["model"] = {**origin["model"], "file": str(Path(self._spec.weights))}
        super().finish({**result, "provenance": origin}, kept)


class Storage:
    """Run folders at a URL of any file system of fsspec.

    A reader of a folder finds what belongs together, whenever the writer is killed: what refers to
    other files is copied after them.
    """

    def __init__(self, url: str) -> None:
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(f"{self._root}/storage.txt", b"Run folders of acclimate bench\n")
        except (OSError, ValueError, ImportError) as error:
            raise BadInput(
                "not_writable",
                f"Cannot write to the storage {url} ({error}). Correct --storage, or install the "
                "package for its protocol.",
                path=url,
            ) from error

    def upload(self, folder: Path, name: str, anew: bool = False) -> None:
        """Copy a run folder to the storage; `anew` removes what is there first."""
        there = self.list_files(name)
        if anew and there:
            self._files.rm(f"{self._root}/{name}", recursive=True)
            there = []
        here = [path for path in folder.iterdir() if _is_kept(path.name)]
        for path in sorted(here, key=lambda path: _rank(path.name)):
            is_fixed = path.suffix == ".state" or path.name in (SPEC, BEGUN)
            if not (is_fixed and path.name in there):
                self.put(path, f"{name}/{path.name}")
        for extra in set(there) - {path.name for path in here}:
            self._files.rm_file(f"{self._root}/{name}/{extra}")

    def download(self, name: str, folder: Path) -> None:
        """Copy a run folder from the storage, if it is there."""
        there = self.list_files(name)
        for path in folder.iterdir() if there and folder.is_dir() else ():
            if _is_kept(path.name) and path.name not in there:
                path.unlink()
        for each in sorted(there, key=_rank):
            self.get(f"{name}/{each}", folder / each)

    def list_files(self, name: str) -> list[str]:
        """Return the names of the files in a run folder; none if it is not there."""
        self._files.invalidate_cache()
        found = self._files.find(f"{self._root}/{name}", maxdepth=1)
        return [each for each in (Path(path).name for path in found) if _is_kept(each)]

    def put(self, path: Path, name: str) -> None:
        """Copy a file to the storage."""
        target = f"{self._root}/{name}"
        self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        if isinstance(self._files, LocalFileSystem):
            write_atomically(target, path.read_bytes())
        else:
            self._files.pipe_file(target, path.read_bytes())  # one request, so atomic

    def get(self, name: str, path: Path) -> bool:
        """Copy a file from the storage; return whether it is there."""
        try:
            content: bytes = self._files.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        return True


def _name(folder: RunFolder) -> str:
    """Return the name of a run folder in a storage."""
    return f"{folder.path.parent.name}/{folder.path.name}"


def _is_kept(name: str) -> bool:
    return name != LOCK and not name.endswith(".part")


def _rank(name: str) -> tuple[bool, ...]:
    return name == RESULT, name == CHECKPOINT, name == SUMS


def _enter(folder: str, data: str | None) -> None:
    """Let a process on a node find what the command finds, unless the node has its own."""
    tune_process()
    if data is not None:
        os.environ.setdefault(VARIABLE, data)
    if Path(folder).is_dir():
        os.chdir(folder)


def _ask(ray: Any, assets: Any, name: str, *arguments: Any) -> Any:
    try:
        found = ray.get(getattr(assets, name).remote(*arguments))
        return ray.get(found[0]) if isinstance(found, list) else found
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def has_file(name: str, sha256: str) -> bool:
    """Return whether this machine has the same file at the same place."""
    return Path(name).is_file() and file_digest(Path(name)) == sha256


def identify(data: Data) -> dict[str, Any]:
    """Return what must be equal for the data of two machines to be the same: the checksums."""
    return {"n_unreadable": len(data.unreadable), **describe_data(data)}


def gather(data: Data, needs_clean: bool) -> Data:
    """Return data with all of its images in memory."""

    def load(domain: Any) -> Any:
        if isinstance(domain.x, Tensor):
            return domain
        return replace(domain, x=np.asarray(domain.x[np.arange(len(domain))]), y=np.array(domain.y))

    clean = None
    if needs_clean and data.clean is not None:
        clean = partial(replace, load(data.clean()))  # unlike a lambda, it can be sent
    groups = {name: tuple(map(load, own)) for name, own in data.groups.items()}
    return replace(data, groups=groups, clean=clean)
