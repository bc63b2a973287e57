"""Test-time adaptation for PyTorch.

A deployed model adapts itself, online, from the unlabelled stream it serves:

    artifact = acclimate.prepare(model, source_loader)      # once, where the source data is
    adapted = acclimate.adapt(model, "swr_nsp", artifact)   # anywhere, still an nn.Module
    logits = adapted(x)                                     # predicts, then learns from x

Names are imported when they are first used, so that the command line can print its help without
loading torch.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

from acclimate._version import __version__

if TYPE_CHECKING:
    from acclimate.adaptation import adapt
    from acclimate.artifact import Artifact
    from acclimate.errors import AcclimateError, AcclimateWarning
    from acclimate.evaluation import evaluate, iter_evaluate
    from acclimate.functional.normalization import Normalization
    from acclimate.methods import get_method, list_methods, register_method
    from acclimate.methods.base import Method, Problem, Snapshot
    from acclimate.methods.composition import NspOptions, SwrOptions
    from acclimate.methods.config import Config, GradientConfig, hp
    from acclimate.methods.gradient import GradientMethod
    from acclimate.methods.guard import Guard
    from acclimate.methods.speed import Speed
    from acclimate.parts.options import (
        ContrastOptions,
        FisherOptions,
        PenaltyOptions,
        PrototypeOptions,
    )
    from acclimate.preparation import prepare

_HOMES = {
    "adaptation": ["adapt"],
    "artifact": ["Artifact"],
    "errors": ["AcclimateError", "AcclimateWarning"],
    "evaluation": ["evaluate", "iter_evaluate"],
    "functional.normalization": ["Normalization"],
    "methods": ["get_method", "list_methods", "register_method"],
    "methods.base": ["Method", "Problem", "Snapshot"],
    "methods.composition": ["NspOptions", "SwrOptions"],
    "methods.config": ["Config", "GradientConfig", "hp"],
    "methods.gradient": ["GradientMethod"],
    "methods.guard": ["Guard"],
    "methods.speed": ["Speed"],
    "parts.options": ["ContrastOptions", "FisherOptions", "PenaltyOptions", "PrototypeOptions"],
    "preparation": ["prepare"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = (
    "builtin",
    "comparison",
    "corruptions",
    "data",
    "distributed",
    "functional",
    "measures",
    "methods",
    "process",
    "streams",
    "testing",
    "training",
    "zoo",
)

__all__ = [
    "AcclimateError",
    "AcclimateWarning",
    "Artifact",
    "Config",
    "ContrastOptions",
    "FisherOptions",
    "GradientConfig",
    "GradientMethod",
    "Guard",
    "Method",
    "Normalization",
    "NspOptions",
    "PenaltyOptions",
    "Problem",
    "PrototypeOptions",
    "Snapshot",
    "Speed",
    "SwrOptions",
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


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return _load(name)
    if name in _HOME_OF:
        value = getattr(_load(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'acclimate' has no attribute {name!r}")


def _load(name: str) -> Any:
    # Loading modules makes no garbage, but so many objects that Python would look for some among
    # all of torch's, which takes a tenth of a second.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(f"acclimate.{name}")
    finally:
        if was_enabled:
            gc.enable()


def __dir__() -> list[str]:
    return [*__all__, *_MODULES]
