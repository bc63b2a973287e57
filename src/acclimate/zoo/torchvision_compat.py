"""The one import of torchvision, also beside a torch build its compiled operators do not fit.

Where the builds match, this is the plain import. Elsewhere the import stops at an operator that was
never registered; declaring the schemas of the two it asks for is enough for the models, which are
plain Python. The compiled operators themselves (nms, roi_align, image decoding) stay unusable.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import torch

from acclimate.errors import MissingExtra, import_extra

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_declared: list[torch.library.Library] = []  # the declarations vanish with these objects


def import_torchvision() -> Any:
    """Return torchvision, with its operators declared if, and only if, the import needs it."""
    try:
        return _import()
    except (RuntimeError, OSError) as error:
        if not any(f"torchvision::{name}" in str(error) for name in ("nms", "qnms")):
            raise
    # What the failed import left behind would be taken for the whole package.
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
    return _import()


def _import() -> Any:
    user = "A model named torchvision:NAME"
    return import_extra("torchvision", user, "torchvision")


def import_library(name: str, extra: str) -> Any:
    """Return a library that may itself import torchvision, if that is installed."""
    with suppress(MissingExtra):
        import_torchvision()
    return import_extra(name, "This", extra)
