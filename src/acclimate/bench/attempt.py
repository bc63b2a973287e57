"""One try at a job in its folder, with whatever can go wrong; and all jobs, one by one, here."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from acclimate.bench.events import Event, OnEvent
from acclimate.bench.execute import RunOptions, Stopped, has_finished, run_job
from acclimate.bench.job import JobSpec
from acclimate.bench.load import Loader
from acclimate.bench.run_folder import ERROR, RunFolder
from acclimate.bench.store import Store

#: `busy`: another process is at it. `stopped`: it was asked to, and can go on.
End = Literal["finished", "failed", "busy", "stopped"]

#: Seconds between two looks at a job that another process works on.
LOOK_EVERY = 0.5


class Lost(Exception):
    """Whoever ran the job is there no more; the message says what is known of the end."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all jobs of a run have in common, whoever runs them.

    Attributes:
        artifacts: Folder of prepared artifacts.
        device: `auto`, `cpu`, `cuda` or `mps`.
        manner: When checkpoints are written, and what was typed.
    """

    artifacts: Path
    device: str = "auto"
    manner: RunOptions = field(default_factory=RunOptions)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {**dataclasses.asdict(self), "artifacts": str(self.artifacts.resolve())}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what `to_dict` gave."""
        manner = RunOptions(**values["manner"])
        return cls(artifacts=Path(values["artifacts"]), device=values["device"], manner=manner)


def try_job(
    spec: JobSpec,
    folder: RunFolder,
    on_start: Callable[[], None],
    run: Callable[[RunFolder], None],
) -> End:
    """Bring a job to its end, or as far as it goes; an error is kept in its folder.

    Args:
        spec: The job.
        folder: Where it is kept.
        on_start: Called when it is certain that there is something to do.
        run: Does it; what comes out goes to the sink.

    Raises:
        Lost: By `run`.
    """
    folder.make()
    with folder.hold() as is_mine:
        if not is_mine:
            return "busy"
        if has_finished(spec, folder):
            return "finished"
        folder.describe({"key": spec.key, **spec.to_dict()})
        on_start()
        try:
            run(folder)
        except Stopped:
            return "stopped"
        except Lost:
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, the other jobs go on
            folder.fail_by(error)
            return "failed"
        finally:
            folder.close()
        return "finished"


class Tries:
    """Runs jobs in this process, one after another, and keeps what they share.

    Args:
        setup: What they have in common.
        tell: Called with the kind of an event, the batches done, those of the job, and a text.
        should_stop: Asked after every batch and at every step of a preparation.
    """

    def __init__(
        self,
        setup: Setup,
        tell: Callable[[str, int, int, str], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self._manner, self._tell, self._should_stop = setup.manner, tell, should_stop
        self._loader = Loader(setup.artifacts, setup.device, self._step)
        self._stage = ""

    def run(self, spec: JobSpec, folder: RunFolder) -> End:
        """Bring a job to its end, or as far as it goes; an error is kept in its folder."""
        self._stage = ""
        return try_job(
            spec,
            folder,
            lambda: self._tell("started", 0, 0, ""),
            lambda sink: run_job(
                spec,
                self._loader,
                sink,
                self._manner,
                lambda done, total: self._tell("progress", done, total, ""),
                self._should_stop,
            ),
        )

    def _step(self, stage: str, done: int, total: int | None) -> None:
        if self._should_stop():
            raise Stopped
        if stage != self._stage:
            self._stage = stage
            self._tell("stage", 0, 0, stage)


def run_here(store: Store, names: Sequence[str], setup: Setup, on_event: OnEvent) -> None:
    """Run jobs in this process, without any other: for small ones, and to look for mistakes."""
    jobs = store.jobs()
    name = names[0]

    def tell(kind: Any, done: int, total: int, text: str) -> None:
        on_event(Event(kind, name, jobs[name], done, total, text))

    with _hold_interrupts() as is_interrupted:
        tries = Tries(setup, tell, is_interrupted)
        left = list(names)
        while left:
            busy = []
            for name in left:
                end = tries.run(jobs[name].spec, store.folder(name))
                tell(end, 0, 0, describe_error(store.folder(name)) if end == "failed" else "")
                if end == "busy":
                    busy.append(name)
                if is_interrupted():
                    raise KeyboardInterrupt
            if busy == left:
                time.sleep(LOOK_EVERY)
            left = busy


@contextmanager
def _hold_interrupts() -> Iterator[Callable[[], bool]]:
    """Let a Ctrl-C wait for the end of the batch and a checkpoint; a second one does not wait.

    Gives a function that says whether there was one. Where somebody else looks after
    interruptions, it is left to them.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    asked = threading.Event()

    def note(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def describe_error(folder: RunFolder) -> str:
    """Return in one line why a job failed."""
    found = folder.read(ERROR) or {"type": "error", "message": "unknown"}
    return f"{found['type']}: {found['message']}"
