"""Test-time adaptation for PyTorch.

A deployed model adapts itself, online, from the unlabelled stream it serves:

    artifact = acclimate.prepare(model, source_loader)      # once, where the source data is
    adapted = acclimate.adapt(model, "swr_nsp", artifact)   # anywhere, still an nn.Module
    logits = adapted(x)                                     # predicts, then learns from x
"""

from acclimate._version import __version__
from acclimate.adapt import adapt
from acclimate.artifact import Artifact
from acclimate.errors import AcclimateError, AcclimateWarning
from acclimate.evaluate import evaluate, iter_evaluate
from acclimate.functional.inputs import Normalization
from acclimate.methods import get_method, list_methods, register_method
from acclimate.methods.base import Method, Problem, Snapshot
from acclimate.methods.config import Config, GradientConfig, hp
from acclimate.methods.gradient import GradientMethod
from acclimate.methods.guard import Guard
from acclimate.parts.options import PenaltyOptions, PrototypeOptions
from acclimate.prepare import prepare

__all__ = [
    "AcclimateError",
    "AcclimateWarning",
    "Artifact",
    "Config",
    "GradientConfig",
    "GradientMethod",
    "Guard",
    "Method",
    "Normalization",
    "PenaltyOptions",
    "Problem",
    "PrototypeOptions",
    "Snapshot",
    "__version__",
    "adapt",
    "evaluate",
    "get_method",
    "hp",
    "iter_evaluate",
    "list_methods",
    "prepare",
    "register_method",
]
