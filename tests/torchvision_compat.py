"""torchvision for tests: `from tests.torchvision_compat import torchvision, v2`."""

from __future__ import annotations

import importlib

from acclimate.zoo.torchvision_compat import import_torchvision

torchvision = import_torchvision()
v2 = importlib.import_module("torchvision.transforms.v2")
