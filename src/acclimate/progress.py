"""A progress bar for long computations, in terminals and notebooks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Called with the stage, what is done, and what is to do (None if unknown).
Progress = Callable[[str, int, int | None], None]

_WIDTH = 24
_PAUSE = 0.1  # seconds between two writes


def get_progress(progress: Progress | bool | None) -> Progress | None:
    """Return what reports progress: the caller's own function, a bar on stderr, or None.

    None and True stand for a bar if stderr is a terminal or a notebook, False for nothing.
    """
    if progress is False:
        return None
    if progress is None or progress is True:
        return ProgressBar() if _is_watched() else None
    return progress


@contextmanager
def finish_line(progress: Progress | None) -> Iterator[None]:
    """End the line of a bar at the end of the block, also after an error."""
    try:
        yield
    finally:
        if isinstance(progress, ProgressBar):
            progress.finish()


class ProgressBar:
    """One line on stderr for each stage, with the time that is left."""

    def __init__(self) -> None:
        self._stage = ""
        self._started = self._written = 0.0
        self._n_first = 0

    def __call__(self, stage: str, n_done: int, n_all: int | None) -> None:
        """Show how far a stage is."""
        now = time.monotonic()
        if stage != self._stage:
            self.finish()
            # The time before the first report is not known, nor what took it.
            self._stage, self._started, self._n_first = stage, now, n_done
            self._written = -_PAUSE
        is_last = n_all is not None and n_done >= n_all
        if now - self._written < _PAUSE and not is_last:
            return
        self._written = now
        text = f"{stage}: {n_done:,}"
        if n_all:
            share = min(1.0, n_done / n_all)
            bar = ("█" * int(share * _WIDTH)).ljust(_WIDTH, "░")
            text = f"{stage} {bar} {n_done:,}/{n_all:,}{self._time_left(now, n_done, n_all)}"
        sys.stderr.write(f"\r\x1b[K{text}")
        if is_last:
            self.finish()
        sys.stderr.flush()

    def finish(self) -> None:
        """End the line, if one is under way."""
        if self._stage:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._stage = ""

    def _time_left(self, now: float, n_done: int, n_all: int) -> str:
        n_timed = n_done - self._n_first
        if n_done >= n_all or n_timed <= 0:
            return ""
        return f", {_show((now - self._started) * (n_all - n_done) / n_timed)} left"


def _is_watched() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _show(seconds: float) -> str:
    """Return a time for people.

    >>> _show(42), _show(200)
    ('42 s', '3 min 20 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
