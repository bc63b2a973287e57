"""Streams: ordered batches of domains, and functions that build them."""

from acclimate.streams.batch import Batch, Domain, Stream
from acclimate.streams.scenarios import (
    continual,
    dirichlet,
    gradual,
    imbalanced,
    label_sorted,
    mixed,
    recurring,
    reset_each,
    source_mixture,
)
from acclimate.streams.wrappers import episodic, epochs, sliding_window, with_clean_probe

__all__ = [
    "Batch",
    "Domain",
    "Stream",
    "continual",
    "dirichlet",
    "episodic",
    "epochs",
    "gradual",
    "imbalanced",
    "label_sorted",
    "mixed",
    "recurring",
    "reset_each",
    "sliding_window",
    "source_mixture",
    "with_clean_probe",
]
