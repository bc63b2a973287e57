"""How the jobs of a suite are shown while they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from acclimate.cli.terminal import get_console, printable

if TYPE_CHECKING:
    from acclimate.bench import Entry, Event
    from acclimate.bench.schedule import Meter

# Seconds between two lines where the output is not a terminal.
_LINE_EVERY = 60.0


@contextmanager
def show_events(jobs: Mapping[str, Entry]) -> Iterator[Callable[[Event], None]]:
    """Give a function that takes events, and shows a bar for the suite and for each job in it.

    Where there is no terminal there is a line for each job that ends, and one a minute.
    """
    from acclimate.bench.schedule import Meter

    meter = Meter(jobs)
    console = get_console(stderr=True)
    if not console.is_terminal:
        last = [time.monotonic()]

        def report(event: Event) -> None:
            meter.take(event)
            is_end = event.kind in ("finished", "failed", "retried")
            if not is_end and time.monotonic() < last[0] + _LINE_EVERY:
                return
            last[0] = time.monotonic()
            console.print(printable(_tell(event, meter)), soft_wrap=True)

        yield report
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[more]}"),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        whole = bars.add_task("", total=None, more="")
        own: dict[str, Any] = {}

        def move(event: Event) -> None:
            meter.take(event)
            done, total = meter.work
            bars.update(
                whole,
                description=_count(meter),
                completed=done,
                total=total or None,
                more=_tell_left(meter),
            )
            if event.kind in ("failed", "retried"):
                console.print(printable(_tell(event, meter)), soft_wrap=True)
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

        yield move


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
