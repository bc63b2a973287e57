"""Models that give logits for every pixel: DeepLabV3+, and it with instance whitening."""

from __future__ import annotations

from acclimate.zoo.segmentation.catalog import (
    DENSE_MODELS,
    DenseSpec,
    build_dense,
    get_dense,
    load_dense,
)
from acclimate.zoo.segmentation.whitening import InstanceWhitening, whitening_layers

__all__ = [
    "DENSE_MODELS",
    "DenseSpec",
    "InstanceWhitening",
    "build_dense",
    "get_dense",
    "load_dense",
    "whitening_layers",
]
