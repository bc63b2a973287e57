"""Adaptation inside other libraries.

`in_place` adapts a model for code that calls the model itself, such as a pipeline or a trainer;
`watch` reports what an adapted model does. One module for each library: `lightning`, `huggingface`,
`timm`, `tensorboard` and `mlflow`. Metrics of torchmetrics are passed to `acclimate.evaluate`.
"""

from acclimate.integrations.in_place import in_place
from acclimate.integrations.watching import watch
from acclimate.zoo.torchvision_compat import import_torchvision

__all__ = ["import_torchvision", "in_place", "watch"]
