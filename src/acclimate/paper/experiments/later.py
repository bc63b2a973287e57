"""Experiments that cannot be run yet, and what they wait for."""

from __future__ import annotations

from acclimate.paper.experiment import Experiment

_SEGMENTATION = (
    "acclimate adapts classifiers only so far; segmentation models (DeepLabV3+, RobustNet), pixel "
    "losses and Cityscapes-C are missing."
)

EXPERIMENTS = (
    Experiment(id="table-s7", shows="Cityscapes-C with SWR", missing=_SEGMENTATION),
    Experiment(id="table-s8", shows="Cityscapes-C: learning rates with SWR", missing=_SEGMENTATION),
    Experiment(id="fig-s3", shows="segmented streets in snow", missing=_SEGMENTATION),
)
