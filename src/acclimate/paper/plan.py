"""Experiments whose jobs depend on what is trained and tried before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.bench.outcome import Outcome
from acclimate.bench.suite import Suite
from acclimate.data.places import Notify, Progress
from acclimate.paper.scales import Settings


@dataclass(frozen=True)
class PlanContext:
    """What a plan works with.

    Attributes:
        folder: Of all that is made meanwhile, and of the jobs in the end.
        run: Runs a suite in a folder, resuming it if it was interrupted, and returns what came out.
        device: `auto`, `cpu`, `cuda` or `mps`.
        watch: Gives a function that is called with the stages of training: how much is done of
            what.
        notify: Called with what was done.
    """

    folder: Path
    run: Callable[[Suite, Path], list[Outcome]]
    device: str = "auto"
    watch: Callable[[], AbstractContextManager[Progress | None]] = nullcontext
    notify: Notify | None = None


@dataclass(frozen=True)
class Plan:
    """What a plan has come to.

    Attributes:
        suite: The jobs of the table; its notes are those of the table.
        record: What was trained, tried and chosen, as JSON types.
    """

    suite: Suite
    record: Mapping[str, Any] = field(default_factory=dict)


#: Makes the jobs of an experiment from its scale, the seeds if they are given, and the settings.
Planner = Callable[[str, Sequence[int] | None, Settings, PlanContext], Plan]
