"""The parts of an artifact: statistics computed once on source data, for later adaptation."""

from acclimate.parts.accuracy import Accuracy
from acclimate.parts.confidence import Confidence
from acclimate.parts.contrast import Contrast
from acclimate.parts.features import Features
from acclimate.parts.fisher import FisherInformation
from acclimate.parts.mirror import Mirror
from acclimate.parts.part import PARTS, Context, Part, get_part, register_part
from acclimate.parts.penalty import Penalty
from acclimate.parts.prototypes import Prototypes

__all__ = [
    "PARTS",
    "Accuracy",
    "Confidence",
    "Context",
    "Contrast",
    "Features",
    "FisherInformation",
    "Mirror",
    "Part",
    "Penalty",
    "Prototypes",
    "get_part",
    "register_part",
]
