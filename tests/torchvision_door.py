"""torchvision for tests: `from tests.torchvision_door import torchvision, v2`."""

from __future__ import annotations

import importlib

from acclimate.zoo.torchvision_door import import_torchvision

torchvision = import_torchvision()
v2 = importlib.import_module("torchvision.transforms.v2")
