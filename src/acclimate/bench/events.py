"""What happens while a suite runs, as whoever watches is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from acclimate.bench.job import JobSpec
from acclimate.bench.outcome import Entry
from acclimate.methods import get_method

#: `found`: done before. `busy`: another process is at it. `stage`: something other than measuring.
Kind = Literal[
    "found", "busy", "started", "stage", "progress", "finished", "retried", "failed", "stopped"
]


@dataclass(frozen=True)
class Event:
    """Something that happened to a job.

    Attributes:
        kind: What.
        name: Folder of the job, relative to that of the suite.
        entry: The job; of several rows that share it, the first.
        done: Batches that are done.
        total: Batches of the job; 0 while that is not known.
        text: More: what stage it is in, or what went wrong.
    """

    kind: Kind
    name: str
    entry: Entry
    done: int = 0
    total: int = 0
    text: str = ""


OnEvent = Callable[[Event], None]


def weigh(spec: JobSpec) -> float:
    """Return about how much work a batch of a job is, in forwards, for guessing the time left."""
    kind = get_method(spec.method)
    passes = kind.card.forwards + 2 * kind.card.backwards + (3 if "nsp" in spec.terms else 0)
    return passes * (spec.get_protocol().batch_size if kind.card.per_image else 1)


class Meter:
    """Keeps count of what is done of a suite, and guesses how long the rest will take.

    Args:
        jobs: By the name of their folder.

    Attributes:
        n_done: Jobs that have reached their end, those among them that had before.
        n_failed: Jobs that were given up.
        running: Batches done and to do of the jobs under way.
    """

    def __init__(self, jobs: Mapping[str, Entry]) -> None:
        self.n_jobs = len(jobs)
        self.n_done = self.n_failed = 0
        self.running: dict[str, tuple[int, int]] = {}
        self._weights = {name: weigh(entry.spec) for name, entry in jobs.items()}
        self._first: dict[str, int] = {}  # batches that were done before this run
        self._done: dict[str, int] = {}
        self._totals: dict[str, int] = {}
        self._given_up: set[str] = set()
        self._start = time.monotonic()

    def take(self, event: Event) -> None:
        """Take note of an event."""
        name = event.name
        if event.kind == "found":
            self._weights.pop(name)
            self.n_done += 1
        elif event.kind == "started":
            self.running[name] = (0, 0)
        elif event.kind == "progress":
            self._first.setdefault(name, event.done)
            self._done[name], self._totals[name] = event.done, event.total
            self.running[name] = (event.done, event.total)
        elif event.kind != "stage":
            self.running.pop(name, None)
            self._close(name, event.kind)

    def _close(self, name: str, kind: Kind) -> None:
        if kind == "finished":
            self.n_done += 1
            self._done[name] = self._totals.setdefault(name, 0)
        elif kind == "failed":
            self.n_failed += 1
            self._given_up.add(name)

    @property
    def work(self) -> tuple[float, float]:
        """What was done in this run and what there is to do in it, in forwards of a batch."""
        known = list(self._totals.values())
        usual = sum(known) / len(known) if known else 0.0
        done = total = 0.0
        for name, weight in self._weights.items():
            first = self._first.get(name, 0)
            n_done = max(0, self._done.get(name, 0) - first)
            done += weight * n_done
            if name in self._given_up:
                total += weight * n_done
            else:
                total += weight * max(0, self._totals.get(name, usual) - first)
        return done, total

    @property
    def seconds_left(self) -> float | None:
        """How long the rest will take if it goes on as it did; None while nobody knows."""
        done, total = self.work
        if done == 0:
            return None
        return (time.monotonic() - self._start) * (total - done) / done
