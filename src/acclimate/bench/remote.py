"""A job on a machine that has neither its folder nor, maybe, its files.

It tells whoever gave it the job everything it sums, and asks for what it has not. See
`acclimate.bench.desk` for the other end of the line.
"""

from __future__ import annotations

import os
import platform
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from acclimate.artifact import Artifact
from acclimate.bench.attempt import Setup
from acclimate.bench.execute import Stopped, run_job
from acclimate.bench.job import JobSpec
from acclimate.bench.load import Labelled, Loader
from acclimate.bench.run_folder import Checkpoint, Failure, Resume
from acclimate.comparison import Data
from acclimate.data import SETS
from acclimate.errors import AcclimateError, BadInput
from acclimate.process import tune_process
from acclimate.progress import Progress
from acclimate.storage import write_atomically
from acclimate.zoo.readers import sha256_of

#: What it is about, and what belongs to that.
Message = tuple[str, dict[str, Any]]

# Seconds between two reports of progress: nobody reads faster.
_SAY_EVERY = 0.1


class Line:
    """Carries messages one way, in order, and answers the other way."""

    def __init__(self) -> None:
        self._said: queue.Queue[Message] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()

    def say(self, kind: str, **content: Any) -> None:
        """Tell something."""
        self._said.put((kind, content))

    def ask(self, kind: str, **content: Any) -> Any:
        """Tell something, and return the answer to it."""
        self.say(kind, **content)
        return self._answers.get()

    def answer(self, value: Any) -> None:
        """Answer what was asked last."""
        self._answers.put(value)

    def listen(self) -> Iterator[list[Message]]:
        """Yield what is said until the end of the job; at once what was said meanwhile."""
        is_over = False
        while not is_over:
            heard = [self._said.get()]
            while not self._said.empty():
                heard.append(self._said.get())
            is_over = heard[-1][0] == "end"
            yield heard


class RemoteSink:
    """Tells all it is given; a record may be lost with this process, but then it is made again.

    Args:
        line: Whom to tell.
        scratch: Folder for files that are needed for a moment.
    """

    def __init__(self, line: Line, scratch: Path) -> None:
        self._line, self._scratch = line, scratch

    def begin(self, identity: Mapping[str, Any]) -> Resume:
        """Return what is known of the job where its folder is."""
        known: Resume
        known, state = self._line.ask("begin", identity=dict(identity))
        if state is not None:
            known.state = self._scratch / "begun.state"
            known.state.write_bytes(state)
        return known

    def append(self, unit: str, record: Mapping[str, Any]) -> None:
        """Tell a record."""
        self._line.say("append", unit=unit, record=dict(record))

    def close_unit(self, unit: str, sums: Sequence[Mapping[str, Any]]) -> None:
        """Tell that the end of a unit was reached."""
        self._line.say("close_unit", unit=unit, sums=list(sums))

    def checkpoint(self, place: Checkpoint, save: Callable[[Path], None]) -> None:
        """Tell a place to go on from, with what the method has learned."""
        path = self._scratch / "last.state"
        save(path)
        self._line.say("checkpoint", place=place, state=path.read_bytes())

    def keep(self, name: str, content: bytes) -> None:
        """Tell a file that belongs to the result."""
        self._line.say("keep", name=name, content=content)

    def finish(self, result: Mapping[str, Any], kept: Sequence[str] = ()) -> None:
        """Tell what came out."""
        self._line.say("finish", result=dict(result), kept=list(kept))


class RemoteLoader(Loader):
    """Takes what is on this machine if it is what was asked for; else it is sent here.

    Args:
        line: Whom to ask.
        scratch: Folder for artifacts.
        device: Where models are put.
        progress: See `Loader`.
    """

    def __init__(self, line: Line, scratch: Path, device: str, progress: Progress) -> None:
        super().__init__(scratch / "artifacts", device, progress)
        self._line = line

    def read_data(self, spec: JobSpec) -> Data:
        """Return the data of this machine's disk if it has the same checksums; else what is sent.

        What is made from nothing is made here.
        """
        if spec.data in SETS and SETS[spec.data].kind == "made":
            return super().read_data(spec)
        try:
            own = super().read_data(spec)
        except AcclimateError:  # why it is not here is of no interest if it can be sent
            own = None
        sent: Data | None = self._line.ask("data", about=None if own is None else identify(own))
        found = own if sent is None else sent
        if found is None:
            raise BadInput(
                "not_fetched",
                f'The data set "{spec.data}" is not on this machine and was not sent to it.',
                name=spec.data,
            )
        return found

    def check_source(self, spec: JobSpec, data: Data) -> None:
        """Check nothing: what is not on this machine is sent."""

    def open_source(self, spec: JobSpec, data: Data) -> tuple[Labelled, Sequence[str]]:
        """Return the source images of this machine's disk; if there are none, what is sent."""
        try:
            return super().open_source(spec, data)
        except AcclimateError:
            sent: tuple[Labelled, Sequence[str]] = self._line.ask("source")
            return sent

    def _load_or_make(
        self, key: str, spec: JobSpec, model: nn.Module, data: Data, parts: Sequence[str]
    ) -> Artifact:
        path = self.artifacts / f"{key}.acclimate"
        if not path.is_file():
            sent: bytes | None = self._line.ask("artifact", key=key)
            if sent is None:
                artifact = super()._load_or_make(key, spec, model, data, parts)
                self._line.say("made", key=key, content=path.read_bytes())
                return artifact
            self.artifacts.mkdir(exist_ok=True)
            write_atomically(path, sent)
        return Artifact.load(path)


class RemoteWorker:
    """Runs jobs one after another; its methods may be called by several threads at once.

    Args:
        setup: What all jobs have in common, as JSON types.
        n_threads: That it computes with.
        folder: Where relative paths begin, if there is such a folder here.
        environment: Variables to set where this machine says nothing of its own.
    """

    def __init__(
        self, setup: Mapping[str, Any], n_threads: int, folder: str, environment: Mapping[str, str]
    ) -> None:
        tune_process()
        for name, value in environment.items():
            os.environ.setdefault(name, value)
        if Path(folder).is_dir():
            os.chdir(folder)
        shared = Setup.from_dict(setup)
        self._manner, self._n_threads = shared.manner, n_threads
        self._kept = TemporaryDirectory(prefix="acclimate-")
        self._scratch = Path(self._kept.name)
        self._line, self._stop = Line(), threading.Event()
        self._loader = RemoteLoader(self._line, self._scratch, shared.device, self._step)
        self._stage, self._said = "", 0.0

    def where(self) -> str:
        """Return the name of this machine."""
        return platform.node()

    def run(self, spec: Mapping[str, Any], sums: Mapping[str, str]) -> Iterator[list[Message]]:
        """Run a job; yield what it says, in order, the last of which is how it ended.

        Args:
            spec: The job, as JSON types.
            sums: The SHA-256 of each file that it names.
        """
        threading.Thread(target=self._work, args=(spec, sums), daemon=True).start()
        yield from self._line.listen()

    def answer(self, value: Any) -> None:
        """Answer what the job has asked."""
        self._line.answer(value)

    def stop(self) -> None:
        """Let the job tell a checkpoint and end."""
        self._stop.set()

    def close(self) -> None:
        """Remove all that was kept here."""
        self._kept.cleanup()

    def _work(self, spec: Mapping[str, Any], sums: Mapping[str, str]) -> None:
        torch.set_num_threads(self._n_threads)
        self._stage, self._said, failure = "", 0.0, None
        try:
            run_job(
                self._find_files(JobSpec.from_dict(spec), sums),
                self._loader,
                RemoteSink(self._line, self._scratch),
                self._manner,
                self._tell,
                self._stop.is_set,
            )
            end = "finished"
        except Stopped:
            end = "stopped"
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it is, it is told
            end, failure = "failed", Failure.of(error)
        self._line.say("end", end=end, failure=failure)

    def _find_files(self, spec: JobSpec, sums: Mapping[str, str]) -> JobSpec:
        """Return the job with files that are on this machine."""
        paths = {name: self._find_file(name, sha256) for name, sha256 in sums.items()}
        head = spec.prepare.contrast_head
        return replace(
            spec,
            weights=None if spec.weights is None else paths[spec.weights],
            prepare=replace(spec.prepare, contrast_head=None if head is None else paths[head]),
        )

    def _find_file(self, name: str, sha256: str) -> str:
        if has_file(name, sha256):
            return name
        path = self._scratch / f"{sha256[:16]}-{Path(name).name}"
        if not path.is_file():
            write_atomically(path, self._line.ask("file", name=name))
        return str(path)

    def _tell(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now >= self._said + _SAY_EVERY:
            self._said = now
            self._line.say("progress", done=done, total=total)

    def _step(self, stage: str, done: int, total: int | None) -> None:
        if self._stop.is_set():
            raise Stopped
        if stage != self._stage:
            self._stage = stage
            self._line.say("stage", text=stage)


def has_file(name: str, sha256: str) -> bool:
    """Return whether this machine has the same file at the same place."""
    path = Path(name)
    return path.is_file() and sha256_of(path) == sha256


def identify(data: Data) -> dict[str, Any]:
    """Return what two machines' data must have in common to be the same: above all, checksums."""
    return {
        "classes": list(data.classes),
        "n_unreadable": len(data.unreadable),
        "domains": {
            name: {key: value for key, value in about.items() if key != "folder"}
            for name, about in data.descriptions.items()
        },
    }
