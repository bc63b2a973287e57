"""How the jobs of a suite are shown while they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from acclimate.cli.terminal import get_console, printable

if TYPE_CHECKING:
    from acclimate.bench import Entry, Event, JobSpec

# Seconds between two lines where the output is not a terminal.
_LINE_EVERY = 60.0


def weigh(spec: JobSpec) -> float:
    """Return about how much work a batch of a job is, in forwards, to estimate the time left."""
    from acclimate.methods import get_method

    kind = get_method(spec.method)
    passes = kind.card.forwards + 2 * kind.card.backwards + (3 if "nsp" in spec.terms else 0)
    return passes * (spec.get_protocol().batch_size if kind.card.per_image else 1)


class Meter:
    """Counts what is done of a suite, and estimates how long the rest will take.

    `n_done` counts also jobs that were done before; `running` are the batches done and to do of the
    jobs that run. Jobs are named by their folders.
    """

    def __init__(self, jobs: Mapping[str, Entry]) -> None:
        self.n_jobs = len(jobs)
        self.n_done = self.n_failed = 0
        self.running: dict[str, tuple[int, int]] = {}
        self._weights = {name: weigh(entry.spec) for name, entry in jobs.items()}
        self._first: dict[str, int] = {}  # batches that were done before this run
        self._done: dict[str, int] = {}
        self._totals: dict[str, int] = {}
        self._failed: set[str] = set()
        self._start = time.monotonic()

    def take(self, event: Event) -> None:
        """Count an event."""
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
            if event.kind == "finished":
                self.n_done += 1
                self._done[name] = self._totals.setdefault(name, 0)
            elif event.kind == "failed":
                self.n_failed += 1
                self._failed.add(name)

    @property
    def work(self) -> tuple[float, float]:
        """What was done in this run and what there is to do in it, in forwards of a batch."""
        known = list(self._totals.values())
        usual = sum(known) / len(known) if known else 0.0
        done = total = 0.0
        for name, weight in self._weights.items():
            first = self._first.get(name, 0)
            n_done = max(0, self._done.get(name, 0) - first)
            left = max(0, self._totals.get(name, usual) - first)
            done += weight * n_done
            total += weight * (n_done if name in self._failed else left)
        return done, total

    @property
    def seconds_left(self) -> float | None:
        """How long the rest will take at the speed so far; None while that is not known."""
        done, total = self.work
        if done == 0:
            return None
        return (time.monotonic() - self._start) * (total - done) / done


@contextmanager
def show_events(jobs: Mapping[str, Entry]) -> Iterator[Callable[[Event], None]]:
    """Give a function that takes events, and shows a bar for the suite and for each job in it.

    Where there is no terminal there is a line for each job that ends, and one a minute.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn

    meter, console = Meter(jobs), get_console(stderr=True)
    is_watched, last = console.is_terminal, time.monotonic()
    columns = ("{task.description}", BarColumn(), TaskProgressColumn(), "{task.fields[more]}")
    with Progress(*columns, console=console, transient=True, disable=not is_watched) as bars:
        whole = bars.add_task("", total=None, more="")
        own: dict[str, Any] = {}

        def show(event: Event) -> None:
            nonlocal last
            meter.take(event)
            is_news = event.kind in ("failed", "retried")
            if not is_watched:
                is_news |= event.kind == "finished" or time.monotonic() >= last + _LINE_EVERY
            if is_news:
                last = time.monotonic()
                console.print(printable(_tell(event, meter)), soft_wrap=True)
            done, total = meter.work
            left = _tell_left(meter)
            bars.update(
                whole, description=_count(meter), completed=done, total=total or None, more=left
            )
            for name in [name for name in own if name not in meter.running]:
                bars.remove_task(own.pop(name))
            for name, (n_done, n_all) in meter.running.items():
                if name not in own:
                    label = printable(_name(jobs[name]))
                    own[name] = bars.add_task(f"  {label}", total=None, more="")
                bars.update(own[name], completed=n_done, total=n_all or None)
            if event.kind == "stage" and event.name in own:
                bars.update(own[event.name], more=event.text)
            elif event.kind == "progress":
                bars.update(own[event.name], more=f"batch {event.done} of {event.total}")

        yield show


def _tell(event: Event, meter: Meter) -> str:
    """Return one line on what has just happened, and how far the suite is."""
    what = {"finished": "done", "retried": "tried again"}.get(event.kind, event.kind)
    more = f": {event.text}" if event.text else ""
    left = _tell_left(meter)
    return f"{what}: {_name(event.entry)}{more} [{_count(meter)}{f', {left}' if left else ''}]"


def _name(entry: Entry) -> str:
    group = f" · {entry.group}" if entry.group else ""
    return f"{entry.label}{group}, seed {entry.spec.seed}"


def _count(meter: Meter) -> str:
    failed = f", {meter.n_failed} failed" if meter.n_failed else ""
    return f"{meter.n_done} of {meter.n_jobs} jobs{failed}"


def _tell_left(meter: Meter) -> str:
    seconds = meter.seconds_left
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"about {hours} h {minutes} min left"
    return f"about {minutes} min left" if minutes else f"about {rest} s left"
