"""The parts of an artifact: each is computed on source data by one function."""

from acclimate.parts.contrast import prepare_contrast
from acclimate.parts.features import prepare_features
from acclimate.parts.fisher import prepare_fisher
from acclimate.parts.options import (
    ContrastOptions,
    FisherOptions,
    PenaltyOptions,
    PrototypeOptions,
)
from acclimate.parts.penalty import prepare_penalty
from acclimate.parts.prototypes import prepare_prototypes
from acclimate.parts.source import Source

__all__ = [
    "ContrastOptions",
    "FisherOptions",
    "PenaltyOptions",
    "PrototypeOptions",
    "Source",
    "prepare_contrast",
    "prepare_features",
    "prepare_fisher",
    "prepare_penalty",
    "prepare_prototypes",
]
