"""Who gets which job, and what becomes of the job of a worker that is lost; without processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acclimate.bench import Entry, Event, Store, Suite
from acclimate.bench.attempt import Setup
from acclimate.bench.crew import Crew, Heard, end_all
from acclimate.bench.job import JobSpec
from acclimate.bench.run_folder import RunFolder
from acclimate.errors import BadInput
from tests.bench.jobs import make_spec
from tests.codes import raises


class Puppet:
    """A worker that does as it is told: `finish` its job, `die` at it, or `vanish` before it."""

    def __init__(self, heard: Heard, acts: Sequence[str], comes: bool = True) -> None:
        self.job: str | None = None
        self.last: str | None = None
        self.is_ready = self.has_begun = self.ended = self.killed = False
        self.begun: list[str] = []
        self._heard, self._acts = heard, list(acts)
        if comes:
            heard.put((self, {"say": "ready"}))

    @property
    def is_stillborn(self) -> bool:
        return not self.is_ready

    def begin(self, name: str, spec: JobSpec, folder: RunFolder) -> None:
        assert self.is_ready
        assert self.job is None
        self.job = self.last = name
        self.begun.append(name)
        folder.make()
        act = self._acts.pop(0)
        self.has_begun = act != "vanish"
        if act == "finish":
            self._heard.put((self, {"say": "finished"}))
        else:
            self.end()

    def end(self) -> None:
        self.ended = True
        self._heard.put((self, None))

    def has_ended(self) -> bool:
        return self.ended

    def describe_end(self) -> str:
        return "was lost on purpose"

    def last_words(self) -> str:
        return "there is no such package"

    def ask_to_stop(self) -> None:
        pass

    def wait(self, seconds: float) -> None:
        pass

    def kill(self) -> None:
        self.killed = True


class Stage:
    """A suite of three jobs, and a crew whose workers act by a script, one list for each."""

    def __init__(self, root: Path, n_workers: int = 1, retries: int = 1) -> None:
        specs = [make_spec("source", seed=seed) for seed in range(3)]
        suite = Suite(title="three", entries=tuple(Entry(s, str(s.seed)) for s in specs))
        self.store = Store.create(root, suite)
        self.names = list(self.store.jobs())
        self.events: list[Event] = []
        self.hired: list[Puppet] = []
        self.script: list[dict[str, Any]] = []
        setup = Setup(artifacts=root / "artifacts")
        self.crew = Crew(
            self.store,
            self.names,
            setup,
            self.events.append,
            hire=self._hire,
            count=lambda: n_workers,
            retries=retries,
        )

    def _hire(self, heard: Heard) -> Puppet:
        worker = Puppet(heard, **self.script[len(self.hired)])
        self.hired.append(worker)
        return worker

    def run(self, *script: dict[str, Any]) -> list[tuple[str, str]]:
        self.script = list(script)
        self.crew.run()
        return [(event.kind, event.entry.label) for event in self.events]


def test_only_who_has_come_to_life_gets_a_job(tmp_path: Path) -> None:
    stage = Stage(tmp_path, n_workers=2)
    told = stage.run({"acts": [], "comes": False}, {"acts": ["finish"] * 3})
    assert told == [("finished", "0"), ("finished", "1"), ("finished", "2")]
    assert stage.hired[1].begun == stage.names
    end_all(stage.crew.workers)
    assert all(worker.killed for worker in stage.hired)


def test_a_job_is_given_up_when_it_has_cost_too_many_workers(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    told = stage.run({"acts": ["die"]}, {"acts": ["die"]}, {"acts": ["finish"] * 2})
    assert told == [("retried", "0"), ("failed", "0"), ("finished", "1"), ("finished", "2")]
    assert stage.hired[0].killed
    error = stage.store.folder(stage.names[0]).read("error.json")
    assert error is not None
    assert error["type"] == "WorkerDied"
    assert "was lost on purpose (attempt 2)" in error["message"]


def test_a_job_that_had_not_begun_costs_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, retries=0)
    lost = [{"acts": ["vanish"]}] * 5
    told = stage.run(*lost, {"acts": ["finish"] * 3})
    assert told.count(("retried", "0")) == 5
    assert told[5:] == [("finished", "0"), ("finished", "1"), ("finished", "2")]


def test_workers_that_never_come_to_life_end_the_run_and_the_message_has_their_last_words(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    hire = stage._hire

    def hire_dead(heard: Heard) -> Puppet:
        worker = hire(heard)
        worker.end()
        return worker

    stage.crew._hire = hire_dead  # type: ignore[method-assign]
    with raises("worker_failed", BadInput) as caught:
        stage.run(*[{"acts": [], "comes": False}] * 3)
    assert len(stage.hired) == 3
    for words in (stage.hired[-1].describe_end(), stage.hired[-1].last_words()):
        assert words in str(caught.value)
