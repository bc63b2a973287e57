"""Models that give logits for every pixel: DeepLabV3+, and it with instance whitening."""

from __future__ import annotations

from acclimate.zoo.segmentation.catalog import (
    DENSE_MODELS,
    WHITENED,
    DenseSpec,
    build_dense,
    get_dense,
    is_dense_name,
    load_dense,
)
from acclimate.zoo.segmentation.whitening import InstanceWhitening, whitening_layers

__all__ = [
    "DENSE_MODELS",
    "WHITENED",
    "DenseSpec",
    "InstanceWhitening",
    "build_dense",
    "get_dense",
    "is_dense_name",
    "load_dense",
    "whitening_layers",
]
