"""The one door to torchvision, open also beside a torch build its compiled operators do not fit.

Where the builds match, this is the plain import. Elsewhere the import stops at an operator that was
never registered; declaring the schemas of the two it asks for is enough for the models, which are
plain Python. The compiled operators themselves (nms, roi_align, image decoding) stay unusable.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from types import ModuleType

import torch

from acclimate.errors import MissingExtra

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_declared: list[torch.library.Library] = []  # the declarations vanish with these objects


def import_torchvision() -> ModuleType:
    """Return torchvision, with its operators declared if, and only if, the import needs it."""
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        raise MissingExtra(
            "missing_extra",
            "Models named torchvision:NAME require torchvision, which is not installed. Run: pip "
            "install 'acclimate[torchvision]'",
            package="torchvision",
        ) from error
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
    return importlib.import_module("torchvision")


def import_library(name: str, extra: str) -> ModuleType:
    """Return a library that may itself import torchvision, if that is installed.

    Raises:
        MissingExtra: The library is not installed; the message names the extra.
    """
    with suppress(MissingExtra):
        import_torchvision()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingExtra(
            "missing_extra",
            f"This needs {package}, which is not installed. Run: pip install 'acclimate[{extra}]'",
            package=package,
        ) from error
