"""Benches: suites of jobs that are run anywhere, resumed if interrupted, and reported on.

Names are imported when they are first used: `acclimate.bench.protocol` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acclimate.bench.job import JobSpec, Preparing
    from acclimate.bench.schedule import ENGINES, Event, run_suite
    from acclimate.bench.selection import RULES, Rule, get_rule
    from acclimate.bench.suite import Entry, Outcome, Status, Store, Suite

_HOMES = {
    "job": ["JobSpec", "Preparing"],
    "schedule": ["ENGINES", "Event", "run_suite"],
    "selection": ["RULES", "Rule", "get_rule"],
    "suite": ["Entry", "Outcome", "Status", "Store", "Suite"],
}
__all__ = [
    "ENGINES",
    "RULES",
    "Entry",
    "Event",
    "JobSpec",
    "Outcome",
    "Preparing",
    "Rule",
    "Status",
    "Store",
    "Suite",
    "get_rule",
    "run_suite",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"acclimate.bench.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
