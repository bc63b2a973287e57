"""Every table and figure of the paper as an experiment that can be run again."""

from __future__ import annotations

from acclimate.paper.catalog import ALIASES, EXPERIMENTS, WHOLES, find_experiments
from acclimate.paper.claims import Claim, Verdict
from acclimate.paper.experiment import Experiment, Variant
from acclimate.paper.published import Published, load_published
from acclimate.paper.run import Reproduction, reproduce
from acclimate.paper.scales import SCALES, Settings, Setup
from acclimate.paper.tables import PaperRow, PaperTable

__all__ = [
    "ALIASES",
    "EXPERIMENTS",
    "SCALES",
    "WHOLES",
    "Claim",
    "Experiment",
    "PaperRow",
    "PaperTable",
    "Published",
    "Reproduction",
    "Settings",
    "Setup",
    "Variant",
    "Verdict",
    "find_experiments",
    "load_published",
    "reproduce",
]
