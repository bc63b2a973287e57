"""Streams: ordered batches of domains, and functions that build them."""

from acclimate.streams.batch import Batch, Domain, Stream
from acclimate.streams.correlated import dirichlet, imbalanced, label_sorted, markov, one_class
from acclimate.streams.scenarios import (
    alternating,
    continual,
    foreign,
    gradual,
    mixed,
    recurring,
    reset_each,
    single_images,
    source_mixture,
)
from acclimate.streams.video import video
from acclimate.streams.wrappers import episodic, epochs, sliding_window, with_clean_probe

__all__ = [
    "Batch",
    "Domain",
    "Stream",
    "alternating",
    "continual",
    "dirichlet",
    "episodic",
    "epochs",
    "foreign",
    "gradual",
    "imbalanced",
    "label_sorted",
    "markov",
    "mixed",
    "one_class",
    "recurring",
    "reset_each",
    "single_images",
    "sliding_window",
    "source_mixture",
    "video",
    "with_clean_probe",
]
