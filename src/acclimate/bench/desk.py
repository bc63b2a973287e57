"""Where the folder of a job is that runs on another machine.

What the job says is written into its folder; what it asks for is loaded here once, and handed over
to be shipped. See `acclimate.bench.remote` for the other end of the line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from acclimate.bench.attempt import Lost, Setup
from acclimate.bench.execute import Stopped
from acclimate.bench.job import JobSpec
from acclimate.bench.load import WAITING, Loader, claim
from acclimate.bench.remote import Message, identify
from acclimate.bench.run_folder import RunFolder
from acclimate.comparison import ArraySource, Data
from acclimate.errors import AcclimateError, BadInput
from acclimate.storage import write_atomically
from acclimate.zoo.readers import sha256_of


class Goods:
    """What jobs on other machines may ask for; each thing is put on its way once.

    Args:
        setup: What all jobs have in common.
        put: Takes a value, and returns what stands for it in an answer.
    """

    def __init__(self, setup: Setup, put: Callable[[Any], Any]) -> None:
        self._loader = Loader(setup.artifacts, "cpu")
        self._put = put
        self._shipped: dict[Hashable, Any] = {}
        self._known: dict[Hashable, dict[str, Any]] = {}
        self._sums: dict[str, str] = {}
        self._lock = threading.RLock()

    def sum_files(self, spec: JobSpec) -> dict[str, str]:
        """Return the SHA-256 of each file that a job names."""
        names = [name for name in (spec.weights, spec.prepare.contrast_head) if name is not None]
        with self._lock:
            for name in names:
                if name not in self._sums:
                    self._sums[name] = sha256_of(Path(name))
            return {name: self._sums[name] for name in names}

    def give_file(self, path: str | Path) -> Any:
        """Return the content of a file."""
        return self._ship(("file", str(path)), Path(path).read_bytes)

    def give_data(self, spec: JobSpec, about: Mapping[str, Any] | None) -> Any:
        """Return the data of a job; None for who has the same, as `identify` says.

        If it is not here, the first who has it decides what the others must have.
        """
        probes = spec.get_protocol().needs_clean
        key = ("data", *spec.data_key)
        with self._lock:
            if key not in self._known:
                try:
                    self._known[key] = identify(self._loader.load_data(spec))
                except AcclimateError:
                    if about is None:
                        raise
                    self._known[key] = dict(about)
            if about == self._known[key]:
                return None
            return self._ship((*key, probes), lambda: gather(self._loader.load_data(spec), probes))

    def give_source(self, spec: JobSpec) -> Any:
        """Return the labelled images that the artifact of a job is prepared from."""

        def load() -> tuple[Any, Sequence[str]]:
            batches, classes = self._loader.open_source(spec, self._loader.load_data(spec))
            if not isinstance(batches, ArraySource):
                raise BadInput(
                    "not_found",
                    "The machine that should prepare an artifact does not have the folder "
                    f"{spec.prepare.source}, and folders of source images are not transferred. "
                    "Copy it there to the same path, or run the suite on this machine first: "
                    "--engine local.",
                    path=spec.prepare.source or spec.data,
                )
            return batches, classes

        return self._ship(("source", spec.artifact_key), load)

    def find_artifact(self, key: str) -> Path:
        """Return where the artifact of that key is, or is to be."""
        return self._loader.artifacts / f"{key}.acclimate"

    def _ship(self, key: Hashable, load: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._shipped:
                self._shipped[key] = self._put(load())
            return self._shipped[key]


class Desk:
    """Takes what one job says, and answers what it asks.

    Args:
        spec: The job.
        goods: What it may ask for.
        tell: Called with the kind of an event, the batches done, those of the job, and a text.
        answer: Sends an answer to the job.
        should_stop: Asked while the job waits.

    Attributes:
        is_over: Whether the job has said how it ended.
    """

    def __init__(
        self,
        spec: JobSpec,
        goods: Goods,
        tell: Callable[[str, int, int, str], None],
        answer: Callable[[Any], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.is_over = False
        self._spec, self._goods, self._tell = spec, goods, tell
        self._answer, self._should_stop = answer, should_stop
        self._claims = ExitStack()

    def serve(self, sink: RunFolder, said: Iterable[Sequence[Message]]) -> None:
        """Do what is to be done about all that is said until the job ends.

        Raises:
            Failure: The job has failed.
            Stopped: It was asked to stop.
            Lost: It says nothing any more, and has not ended.
        """
        with self._claims:
            for messages in said:
                for kind, content in messages:
                    self._take(sink, kind, content)
            if not self.is_over:
                raise Lost("fell silent")

    def _take(self, sink: RunFolder, kind: str, content: dict[str, Any]) -> None:
        match kind:
            case "append":
                sink.append(**content)
            case "progress":
                self._tell("progress", content["done"], content["total"], "")
            case "stage":
                self._tell("stage", 0, 0, content["text"])
            case "begin":
                known = sink.begin(content["identity"])
                state = None if known.state is None else known.state.read_bytes()
                self._answer((replace(known, state=None), state))
            case "close_unit":
                sink.close_unit(**content)
            case "checkpoint":
                write = partial(write_atomically, content=content["state"])
                sink.checkpoint(content["place"], write)
            case "finish":
                sink.finish(self._name_files(content["result"]), content["kept"])
            case "keep":
                sink.keep(**content)
            case "file":
                self._answer(self._goods.give_file(content["name"]))
            case "data":
                self._answer(self._goods.give_data(self._spec, content["about"]))
            case "source":
                self._answer(self._goods.give_source(self._spec))
            case "artifact":
                self._answer(self._give_artifact(content["key"]))
            case "made":
                write_atomically(self._goods.find_artifact(content["key"]), content["content"])
                self._claims.close()
            case "end":
                self._end(**content)
            case _:
                raise ValueError(f"Unknown message type {kind}.")

    def _give_artifact(self, key: str) -> Any:
        """Return an artifact; None if the job must make it, which nobody else does meanwhile."""
        path = self._goods.find_artifact(key)
        if not path.is_file():
            self._claims.enter_context(claim(path, self._wait))
            if not path.is_file():
                return None
            self._claims.close()
        return self._goods.give_file(path)

    def _wait(self) -> None:
        if self._should_stop():
            raise Stopped
        self._tell("stage", 0, 0, WAITING)

    def _name_files(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the result with the names that files have here, not where they were sent to."""
        origin = dict(result["provenance"])
        origin["spec"] = self._spec.to_dict()
        if self._spec.weights is not None:
            origin["model"] = {**origin["model"], "file": str(Path(self._spec.weights))}
        return {**result, "provenance": origin}

    def _end(self, end: str, failure: Exception | None) -> None:
        self.is_over = True
        if failure is not None:
            raise failure
        if end == "stopped":
            raise Stopped


def gather(data: Data, probes: bool) -> Data:
    """Return data with all of its images in memory, as it can be sent to where no file of it is."""
    clean = None
    if probes and data.clean is not None:
        clean = partial(_same, _gather(data.clean()))
    groups = {name: tuple(_gather(domain) for domain in own) for name, own in data.groups.items()}
    return replace(data, groups=groups, clean=clean)


def _gather(domain: Any) -> Any:
    if isinstance(domain.x, Tensor):
        return domain
    x = np.asarray(domain.x[np.arange(len(domain))])
    return replace(domain, x=x, y=np.array(domain.y))


def _same(value: Any) -> Any:
    return value
