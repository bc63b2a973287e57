"""Training for segmentation: DeepLabV3+, and RobustNet by instance selective whitening.

settings = SegmentationSettings(
    model="deeplabv3plus-efficientnet-lite0", data="camvid", pretrained=True, isw=True
)
result = train_segmentation(settings, "camvid-isw.safetensors")
result.miou                                          # on the validation images, in percent
model = load_dense("camvid-isw.safetensors")         # of acclimate.zoo.segmentation
"""

from __future__ import annotations

from acclimate.training.segmentation.isw import SelectiveWhitening, select_pairs, whitening_loss
from acclimate.training.segmentation.run import SegmentationResult, train_segmentation
from acclimate.training.segmentation.settings import SegmentationSettings

__all__ = [
    "SegmentationResult",
    "SegmentationSettings",
    "SelectiveWhitening",
    "select_pairs",
    "train_segmentation",
    "whitening_loss",
]
