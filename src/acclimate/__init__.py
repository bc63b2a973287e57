"""Test-time adaptation for PyTorch.

A deployed model adapts online, from the unlabelled stream that it serves:

    artifact = acclimate.prepare(model, source_loader)      # once, where the source data is
    adapted = acclimate.adapt(model, artifact=artifact)   # anywhere, still an nn.Module
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
    from acclimate.functional.inputs import Normalization
    from acclimate.functional.signals import Estimate
    from acclimate.guard import Guard, GuardReport
    from acclimate.introspect import ModelInfo
    from acclimate.methods import get_method, list_methods, register_method
    from acclimate.methods.compute import Speed
    from acclimate.methods.config import (
        Config,
        EntropyConfig,
        GradientConfig,
        MethodCard,
        Problem,
    )
    from acclimate.methods.gradient import GradientMethod
    from acclimate.methods.method import Method, Snapshot
    from acclimate.options import hp
    from acclimate.parts import (
        Accuracy,
        Confidence,
        Contrast,
        Features,
        FisherInformation,
        Mirror,
        Part,
        Penalty,
        Prototypes,
        register_part,
    )
    from acclimate.preparation import prepare
    from acclimate.sessions import Sessions
    from acclimate.terms import ActiveTerm, FisherPenalty, Nsp, Swr, Term, register_term

_HOMES = {
    "adaptation": ["adapt"],
    "artifact": ["Artifact"],
    "errors": ["AcclimateError", "AcclimateWarning"],
    "evaluation": ["evaluate", "iter_evaluate"],
    "functional.inputs": ["Normalization"],
    "methods": ["get_method", "list_methods", "register_method"],
    "functional.signals": ["Estimate"],
    "guard": ["Guard", "GuardReport"],
    "introspect": ["ModelInfo"],
    "methods.compute": ["Speed"],
    "methods.config": ["Config", "EntropyConfig", "GradientConfig", "MethodCard", "Problem"],
    "methods.gradient": ["GradientMethod"],
    "methods.method": ["Method", "Snapshot"],
    "options": ["hp"],
    "parts": [
        "Accuracy",
        "Confidence",
        "Contrast",
        "Features",
        "FisherInformation",
        "Mirror",
        "Part",
        "Penalty",
        "Prototypes",
        "register_part",
    ],
    "preparation": ["prepare"],
    "sessions": ["Sessions"],
    "terms": ["ActiveTerm", "FisherPenalty", "Nsp", "Swr", "Term", "register_term"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = (
    "bench",
    "builtin",
    "commands",
    "corruptions",
    "data",
    "distributed",
    "functional",
    "integrations",
    "methods",
    "metrics",
    "parts",
    "process",
    "streams",
    "terms",
    "testing",
    "training",
    "zoo",
)

__all__ = [
    "AcclimateError",
    "AcclimateWarning",
    "Accuracy",
    "ActiveTerm",
    "Artifact",
    "Confidence",
    "Config",
    "Contrast",
    "EntropyConfig",
    "Estimate",
    "Features",
    "FisherInformation",
    "FisherPenalty",
    "GradientConfig",
    "GradientMethod",
    "Guard",
    "GuardReport",
    "Method",
    "MethodCard",
    "Mirror",
    "ModelInfo",
    "Normalization",
    "Nsp",
    "Part",
    "Penalty",
    "Problem",
    "Prototypes",
    "Sessions",
    "Snapshot",
    "Speed",
    "Swr",
    "Term",
    "__version__",
    "adapt",
    "evaluate",
    "get_method",
    "hp",
    "iter_evaluate",
    "list_methods",
    "prepare",
    "register_method",
    "register_part",
    "register_term",
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
    # Importing allocates so many objects that it triggers a garbage collection over all objects of
    # torch, which takes 0.1 s and frees nothing.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(f"acclimate.{name}")
    finally:
        if was_enabled:
            gc.enable()


def __dir__() -> list[str]:
    return [*__all__, *_MODULES]
