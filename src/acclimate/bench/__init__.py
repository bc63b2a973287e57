"""Benches: suites of jobs that are run anywhere, resumed if interrupted, and reported on."""

from __future__ import annotations

from acclimate.bench.job import JobSpec, Preparing
from acclimate.bench.outcome import Entry, Outcome
from acclimate.bench.schedule import ENGINES, Event, run_suite
from acclimate.bench.selection import RULES, Rule, get_rule
from acclimate.bench.suite import Status, Store, Suite

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
