"""Every table and figure of the paper as an experiment that can be run again."""

from acclimate.paper.claims import Claim, Verdict
from acclimate.paper.experiment import Experiment, Reproduction, Variant, reproduce
from acclimate.paper.experiments import ALIASES, EXPERIMENTS, WHOLES, find_experiments, list_aliases
from acclimate.paper.published import Published, load_published
from acclimate.paper.settings import SCALES, Settings, Setup
from acclimate.paper.tables import PaperRow, PaperTable, claims_table

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
    "claims_table",
    "find_experiments",
    "list_aliases",
    "load_published",
    "reproduce",
]
