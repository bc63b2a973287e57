"""torchmetrics for tests: `from tests.torchmetrics_compat import torchmetrics`."""

from __future__ import annotations

import importlib

# torchmetrics imports torchvision where it finds it, which must have come through its own door.
from tests.torchvision_compat import torchvision

torchmetrics = importlib.import_module("torchmetrics")
classification = importlib.import_module("torchmetrics.classification")

__all__ = ["classification", "torchmetrics", "torchvision"]
