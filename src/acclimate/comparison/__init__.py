"""Comparisons: several methods on the same stream, recorded as they run, resumed if cut."""

from __future__ import annotations

from acclimate.comparison.configs import ALL, choose_methods, find_unsuitable, make_configs
from acclimate.comparison.job import Job, check_job, run_job
from acclimate.comparison.ledger import Ledger
from acclimate.comparison.protocol import ORDERS, OWN_ORDERS, RESET_EACH, STREAMS, Protocol
from acclimate.comparison.result import Comparison, Run
from acclimate.comparison.run import (
    Finished,
    Guarded,
    Step,
    Unit,
    Wrapping,
    compare,
    iter_compare,
)
from acclimate.data.loading import GUARDED, Preparation, check_source, find_needs, load_data
from acclimate.data.request import Data, Request

__all__ = [
    "ALL",
    "GUARDED",
    "ORDERS",
    "OWN_ORDERS",
    "RESET_EACH",
    "STREAMS",
    "Comparison",
    "Data",
    "Finished",
    "Guarded",
    "Job",
    "Ledger",
    "Preparation",
    "Protocol",
    "Request",
    "Run",
    "Step",
    "Unit",
    "Wrapping",
    "check_job",
    "check_source",
    "choose_methods",
    "compare",
    "find_needs",
    "find_unsuitable",
    "iter_compare",
    "load_data",
    "make_configs",
    "run_job",
]
