"""Importing torchvision, also beside a torch build that its compiled operators do not fit.

`from tests.torchvision_door import torchvision, v2` is the plain import where the builds match.
Elsewhere the import stops at an operator that was never registered; declaring the schemas of the
two it asks for is enough for the transforms and models, which are plain Python. The compiled
operators themselves stay unusable.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# The declarations vanish with this object.
_declared: torch.library.Library | None = None


def import_torchvision() -> ModuleType:
    """Return torchvision, with its operators declared if, and only if, the import needs it."""
    global _declared
    try:
        return importlib.import_module("torchvision")
    except (RuntimeError, OSError) as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    _declared = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        _declared.define(schema)
    return importlib.import_module("torchvision")


torchvision = import_torchvision()
v2 = importlib.import_module("torchvision.transforms.v2")
